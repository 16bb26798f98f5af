"""Which of the hosts that ended merges: a pure decision on what is seen of all."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from fedmon.node.job.roll import Entry, Seen


class Life(enum.Enum):
    """What is known of another host's process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Choice(enum.Enum):
    """Whether to merge."""

    OURS = "merge"
    THEIRS = "leave it to another, or it is done"
    WAIT = "look again"


def choose(seen: Seen, ours: Entry, lives: Mapping[Entry, Life], *, absent: int) -> Choice:
    """Decide for a host that said that it ended; ``absent`` hosts may still come.

    Whoever lives and did not end will see our end at its own. Whoever merges now looks for ends once more when it is
    done. So it is enough that one host goes on: the last, or the first to make the next claim among those that cannot
    know who is the last.
    """
    others = [lives[entry] for entry in seen.running if entry != ours]
    if Life.ALIVE in others:
        return Choice.THEIRS
    if seen.claim is not None and not seen.merged and seen.claim.entry != ours:
        match lives[seen.claim.entry]:
            case Life.ALIVE:
                return Choice.THEIRS
            case Life.UNKNOWN:
                return Choice.WAIT
            case Life.DEAD:
                pass
    if seen.covered:
        return Choice.THEIRS
    return Choice.WAIT if absent or Life.UNKNOWN in others else Choice.OURS
