"""The newest values of all nodes for Prometheus, as OpenMetrics over HTTP."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.registry import Collector

from fedmon.common.clock import Deadline
from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.table import METRICS, is_counter
from fedmon.researcher.cli.readings import REMEMBERED_S, WatchState
from fedmon.researcher.cli.shell import EPILOG, IntervalOption, MetricsOption, NodesOption, emit_line, federated
from fedmon.researcher.federation import Federation
from fedmon.researcher.samples.watch import LiveSample

PORT = 9464
"""Source: OpenTelemetry's default port of a Prometheus exporter."""
OWN_LABELS = ("node", "stream")
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
FORGOTTEN_S = 3600.0
"""Seconds without a sample after which a stream is dropped."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def metrics() -> None:
    """Offer the newest values of nodes to Prometheus."""


class NewestValues(Collector):
    """Collector of prometheus-client: the newest value of each series, without nodes that fell silent.

    Counters are the nodes' own and restart with their boots. A metric's label ``node`` or ``stream`` becomes
    ``exported_node`` or ``exported_stream``, as in Prometheus. Safe from any thread.
    """

    def __init__(self) -> None:
        self._state, self._lock = WatchState(), threading.Lock()

    def take(self, sample: LiveSample) -> None:
        """Take a sample of any node."""
        with self._lock:
            self._state.take(sample)

    def collect(self) -> Iterator[Metric]:
        """Return a family for each metric; called at each scrape."""
        families: dict[str, Metric] = {}
        with self._lock:
            self._state.forget(FORGOTTEN_S)
            for node, stream, latest in self._state.streams(""):
                if self._state.silent_s(node) is not None or self._state.unheard_s(latest) > REMEMBERED_S:
                    continue
                for name in filter(NAME.fullmatch, latest.names()):
                    family = families.setdefault(name, _family(name))
                    for labels, value in latest.each(name):
                        if value is not None:
                            own = {f"exported_{key}" if key in OWN_LABELS else key: labels[key] for key in labels}
                            family.add_sample(name, {"node": node, "stream": stream, **own}, value)
        yield from families.values()


def _family(name: str) -> Metric:
    """Return an empty family; a counter's name is that of its samples without ``_total``."""
    from prometheus_client import Metric

    known = METRICS.get(name)
    text = known.help if known is not None else "Reported by a plan or a plug-in."
    kind = "counter" if known is not None and is_counter(known) else "gauge"
    return Metric(name.removesuffix("_total") if kind == "counter" else name, text, kind)


@app.command(epilog=EPILOG)
@federated(asks=False)
def serve(
    federation: Federation,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = PORT,
    node: NodesOption = None,
    metric: MetricsOption = None,
    interval: IntervalOption = None,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0.1, help="Seconds to run (default: until Ctrl-C).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Serve the newest values of all nodes as OpenMetrics; a node that falls silent disappears."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    values = NewestValues()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(values)
    with federation, federation.monitor(values.take, nodes=node, metrics=metric, interval_s=interval):
        try:
            running, thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise InvalidInputError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        url = f"http://{f'[{host}]' if ':' in host else host}:{running.server_port}/metrics"
        emit_line({"url": url}, text=f"{url} (Ctrl-C ends)", as_json=json)
        try:
            deadline, tick = Deadline(seconds if seconds is not None else 10**9), threading.Event()
            while not deadline.passed():
                tick.wait(min(deadline.left_s(), 3600.0))
        except KeyboardInterrupt:
            pass
        finally:
            running.shutdown()
            thread.join()
