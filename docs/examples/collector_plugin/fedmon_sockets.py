"""How many sockets a machine has open, from /proc/net/sockstat: an example of a collector plug-in."""

from __future__ import annotations

from pathlib import Path

from fedmon.node.collectors.plugins import (
    CollectorUnavailableError,
    Context,
    Instant,
    Lane,
    Reading,
    Unit,
    Why,
    rows,
    series,
)

SOURCE = "/proc/net/sockstat"
METRICS = [
    *rows(SOURCE, Unit.COUNT, {"host_sockets_used": "Sockets that exist, of every protocol."}),
    *rows(
        SOURCE,
        Unit.COUNT,
        {"host_sockets_in_use": "Sockets of a protocol that are in use."},
        labels=("protocol",),
    ),
]


def make(context: Context) -> SocketCollector:
    """Declare the metrics, read the settings, and return the collector."""
    context.declare(METRICS)
    protocols = context.settings.get("protocols", ["TCP", "UDP"])
    return SocketCollector(context.roots.proc / "net" / "sockstat", protocols)


class SocketCollector:
    """Reads the file once for each sample."""

    name = "sockets"
    lane = Lane.FAST

    def __init__(self, path: Path, protocols: list[str]) -> None:
        self._path, self._protocols = path, protocols

    def collect(self, _now: Instant) -> Reading:
        """Return the counts; a protocol that this machine does not have is left out."""
        counts = self._read()
        values: dict[str, float | None] = {"host_sockets_used": counts["sockets"]["used"]}
        for protocol in self._protocols:
            if protocol in counts:
                key = series("host_sockets_in_use", protocol=protocol.lower())
                values[key] = counts[protocol]["inuse"]
        return Reading(values)

    def probe(self) -> dict[str, str | None]:
        """Say whether the file can be read."""
        try:
            self._read()
        except CollectorUnavailableError as error:
            return {metric.name: error.reason for metric in METRICS}
        return {metric.name: None for metric in METRICS}

    def _read(self) -> dict[str, dict[str, int]]:
        """Return the file's lines, such as ``TCP: inuse 5 orphan 0``, as protocol to name to count."""
        try:
            lines = self._path.read_text().splitlines()
        except OSError as error:
            raise CollectorUnavailableError(Why.NOT_FOUND, f"{self._path}: {error.strerror}") from None
        counts = {}
        for line in lines:
            protocol, _, rest = line.partition(":")
            words = rest.split()
            counts[protocol] = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        return counts
