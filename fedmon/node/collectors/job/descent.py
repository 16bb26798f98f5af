"""Who descends from whom, among processes that were read at one time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class _Born(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def parent(self) -> int: ...


BornT = TypeVar("BornT", bound=_Born)


def descended(pids: Iterable[int], processes: Iterable[BornT]) -> list[BornT]:
    """Return those who descend from processes by their numbers, these not, parents before their children."""
    by_parent: dict[int, list[BornT]] = {}
    for each in processes:
        by_parent.setdefault(each.parent, []).append(each)
    queue = list(pids)
    # A number that was given anew while they were read can make a process its own forebear.
    seen = set(queue)
    found: list[BornT] = []
    while queue:
        for child in by_parent.get(queue.pop(), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
                queue.append(child.pid)
    return found
