"""The numbers that a plan reported and conditions were told of: each once, whatever becomes of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from fedmon.experiment.events import AttributeSet, Measured
from fedmon.experiment.journal import NAME, read_journal

Told = tuple[str, int, str]
"""Of which node, its how manieth report, and the name of the number."""


class Reported:
    """Hands on the numbers of one job; safe from any thread. Those in ``before`` another process has handed on."""

    def __init__(
        self, tell: Callable[[str, int, dict[str, float]], None], before: Collection[Told] = frozenset()
    ) -> None:
        self._tell, self._before = tell, before
        self._taken: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def take(self, node_id: str, number: int, values: Mapping[str, float | None]) -> None:
        """Take one report; when this returns, conditions know of it."""
        with self._lock:  # held while they are told: who comes second may say that all is told
            if (node_id, number) in self._taken:
                return
            self._taken.add((node_id, number))
            self._tell(
                node_id,
                number,
                {
                    name: value
                    for name, value in values.items()
                    if value is not None and (node_id, number, name) not in self._before
                },
            )


def told_before(run_dir: str | Path, guid: int) -> frozenset[Told]:
    """Return what the journal of a run says was told of a job since it was started last.

    Raises StorageError where it cannot be read.
    """
    found: set[Told] = set()
    path = Path(run_dir) / NAME
    for event in read_journal(path) if path.exists() else ():
        if isinstance(event, AttributeSet) and event.guid == guid and event.name == "jobId":
            found.clear()
        elif isinstance(event, Measured) and event.guid == guid and event.nth is not None:
            found.add((event.source, event.nth, event.name))
    return frozenset(found)
