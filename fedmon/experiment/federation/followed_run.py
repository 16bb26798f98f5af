"""A run on nodes as a job follows it: what it reports, whom it still waits for, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire.runs import JobState

if TYPE_CHECKING:
    from fedmon.experiment.federation.reported import Reported
    from fedmon.researcher.runs.handle import RunHandle
    from fedmon.researcher.session.callbacks import Subscription


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: whether well, and where it did not, node by node; "" where it did everywhere."""

    is_well: bool
    outcome: str
    failed: str = ""


class FollowedRun:
    """Calls back when nothing more will come, of other nodes than those that were lost; safe from any thread.

    ``reported`` gets each number that the plan tells.
    """

    def __init__(self, handle: RunHandle, reported: Reported, on_over: Callable[[], object]) -> None:
        self.handle, self._reported, self._on_over = handle, reported, on_over
        self._lost: frozenset[NodeId] = frozenset()
        self._subscriptions: tuple[Subscription, ...] = ()

    def begin(self) -> None:
        """Begin to listen; what is here already is told at once."""
        self._subscriptions = (
            self.handle.on_scalar(lambda one: self._reported.take(one.node_id, one.number, one.values)),
            self.handle.on_over(self._on_over),
        )

    def end(self) -> None:
        """Listen no more."""
        for subscription in self._subscriptions:
            subscription.remove()

    def lose(self, node_id: NodeId) -> None:
        """Wait no longer for a node."""
        self._lost |= {node_id}
        self._subscriptions += (self.when_over(self._on_over),)

    def when_over(self, callback: Callable[[], object]) -> Subscription:
        """Call back once, when nothing more will come but of lost nodes."""
        return self.handle.on_over(callback, without=sorted(self._lost))

    @property
    def waits_for(self) -> list[NodeId]:
        """The nodes on which it goes on, but for those that were lost."""
        return sorted(node_id for node_id in self._going() if node_id not in self._lost)

    def _going(self) -> list[NodeId]:
        return [node_id for node_id, part in self.handle.states().items() if not part.is_over]

    def tell_rest(self) -> None:
        """Hand over the numbers that are here and were not handed over yet; those that come are handed over later."""
        for node_id, scalars in self.handle.scalars.items():
            for one in scalars:
                self._reported.take(node_id, one.number, one.values)

    def ending(self, *, at_least: int | None, is_stopping: bool, forgives_lost: bool = False) -> Ending:
        """Return how it ended; well, where it did on ``at_least`` nodes, null: on all, or was to stop and did.

        With ``forgives_lost`` a node that was lost counts as one where it stopped.
        """
        lost = {str(node_id): "the node was lost while it ran there" for node_id in self._going()}
        failed = self.handle.failures() | lost
        succeeded = [node_id for node_id in self.handle.nodes if node_id not in failed]
        stopped = [*self._stopped(), *(lost if forgives_lost else ())] if is_stopping else []
        return ending_of(succeeded, failed, stopped, at_least=at_least)

    def _stopped(self) -> list[str]:
        parts = self.handle.states().items()
        return [str(node_id) for node_id, part in parts if part.job is not None and part.job.state is JobState.STOPPED]


def ending_of(
    succeeded: Collection[str], failed: dict[str, str], stopped: Collection[str], *, at_least: int | None
) -> Ending:
    """Judge a run by where it succeeded, why not elsewhere, and where it stopped for it was told to."""
    said = "; ".join(f"{node_id}: {reason}" for node_id, reason in sorted(failed.items()))
    if not failed:
        is_well = at_least is None or len(succeeded) >= at_least
        short = "" if is_well else f"it ran on {len(succeeded)} nodes, and atLeast is {at_least}"
        return Ending(is_well=is_well, outcome=short or "succeeded on every node", failed=short)
    if all(node_id in stopped for node_id in failed):
        return Ending(is_well=True, outcome=said)
    is_well = at_least is not None and len(succeeded) >= at_least
    return Ending(
        is_well=is_well,
        outcome=f"succeeded on {', '.join(sorted(succeeded))}; {said}" if is_well else said,
        failed=said,
    )
