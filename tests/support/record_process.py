"""`fedmon record` as a process, and what its store holds."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, Self

from fedmon.common.store.recording import Recording
from tests.support.brokers import Broker
from tests.support.environment import researcher_environment
from tests.support.shell import begun


class RecordProcess:
    """Records for a researcher into ``NAME.fedmon`` of a folder; a context manager that kills it at the end."""

    def __init__(self, broker: Broker, folder: Path, name: str = "alice") -> None:
        store, self._lines, self._errors = (folder / f"{name}.{kind}" for kind in ("fedmon", "lines", "errors"))
        environ = researcher_environment(broker.url, folder / name, name)
        with self._lines.open("w") as lines, self._errors.open("w") as errors:
            self.process = begun("record", str(store), "--json", environ=environ, stdout=lines, stderr=errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def told(self) -> dict[str, Any]:
        """Return its newest whole line, empty before the first."""
        whole = self._lines.read_text().split("\n")[:-1]
        return dict(json.loads(whole[-1])) if whole else {}

    def errors(self) -> str:
        """Return what it said on standard error."""
        return self._errors.read_text()


def stored(store: Path) -> list[tuple[int, int]]:
    """Return boot and number of each sample of the stream ``host`` in a store, in its order."""
    with Recording(store, read_only=True) as recording:
        return [
            (batch.boot, seq) for batch in recording.read(stream="host") for seq in range(batch.seq, batch.last_seq + 1)
        ]
