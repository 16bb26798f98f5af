"""The newest values of all nodes for Prometheus, as OpenMetrics over HTTP."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.registry import Collector

from fedmon.common.errors import ConflictError, InvalidInputError
from fedmon.common.metrics.series import NAME, with_origin
from fedmon.common.metrics.table import METRICS, is_counter
from fedmon.researcher.cli.readings import REMEMBERED_S, WatchState, split
from fedmon.researcher.cli.shell import emit, tell_absent

if TYPE_CHECKING:
    from fedmon.researcher.federation import Federation
    from fedmon.researcher.samples.watch import LiveSample

FORGOTTEN_S = 4 * 3600.0
"""Seconds without a sample after which a stream is dropped: more than three of the longest intervals."""


class NewestValues(Collector):
    """Collector of prometheus-client: the newest value of each series, without nodes that fell silent.

    Counters are the nodes' own and restart with their boots. A metric's label ``node`` or ``stream`` becomes
    ``exported_node`` or ``exported_stream``, as in Prometheus. Safe from any thread.
    """

    def __init__(self, state: WatchState | None = None) -> None:
        self._state, self._lock = state or WatchState(), threading.Lock()

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
                remembered_s = max(REMEMBERED_S, 3 * latest.pace_s)
                if self._state.silent_s(node) is not None or self._state.unheard_s(latest) > remembered_s:
                    continue
                for series in latest.series():
                    (name, labels), value = split(series), latest.value(series)
                    if value is not None and NAME.fullmatch(name):
                        family = families.setdefault(name, _family(name))
                        family.add_sample(name, with_origin(labels, node=node, stream=stream), value)
        yield from families.values()


def _family(name: str) -> Metric:
    """Return an empty family; a counter's name is that of its samples without ``_total``, which must leave one."""
    known = METRICS.get(name)
    text = known.help if known is not None else "Reported by a plan or a plug-in."
    kind = "counter" if is_counter(name) and name != "_total" else "gauge"
    return Metric(name.removesuffix("_total") if kind == "counter" else name, text, kind)


def serve_newest(
    federation: Federation, choice: Mapping[str, Any], *, host: str, port: int, seconds: float | None, as_json: bool
) -> None:
    """Serve the newest values of a choice for `Federation.monitor`; see `fedmon metrics serve`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    values = NewestValues()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(values)
    with federation, federation.monitor(values.take, **choice):
        try:
            running, thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            kind = ConflictError if error.errno == errno.EADDRINUSE else InvalidInputError
            raise kind(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        url = f"http://{f'[{host}]' if ':' in host else host}:{running.server_port}/metrics"
        try:
            emit({"url": url}, text=f"{url} (Ctrl-C ends)", as_json=as_json)
            tell_absent(federation, choice["nodes"])
            threading.Event().wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        except KeyboardInterrupt:
            pass
        finally:
            running.shutdown()
            thread.join()
