"""What one node has told of a run so far, and what is to be asked of it; belongs to the lock of its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire.runs import Job, JobState, Parcel, Scalar
from fedmon.researcher.asking.outcome import OutcomeStatus

MAX_SCALARS_KEPT = 100_000
MAX_SCALARS_BYTES = 64 * 2**20
"""Of one node; what comes after them is not kept, so that no plan fills the memory of who runs it."""
QUIET_S = 2.0
LONGEST_QUIET_S = 16.0
"""After so long without a word of a job that goes on, doubling, its node is asked: its outcome may have been lost."""
PACE_S = 0.5
"""Scalars that were missed are asked for at most so often while the job goes on."""
RETRY_S = 2.0
_VALUE_BYTES = 128
"""What a value takes in memory beside its name, about."""
LONGEST_RETRY_S = 30.0
GIVE_UP_AFTER = 4
"""Questions about a job that is over which its node leaves unanswered until what is missing counts as lost."""


class Part:
    """One node's part in a run. ``asked`` is what came of asking it to run; everything else comes later."""

    def __init__(self, node_id: NodeId, *, now: float, asked: OutcomeStatus, reason: str = "") -> None:
        self.node_id, self.asked, self.reason = node_id, asked, reason
        self.job: Job | None = None
        self.result: Parcel | None = None
        self.scalars: dict[int, Scalar] = {}
        self.scalars_lost = self._bytes = 0
        self._next_scalar = 0
        self._expected = 0
        self._result_gone = self._forgotten = False
        self._news_at = now
        self._asks = 0
        self._quiet_s = QUIET_S
        self._may_ask_at = now

    # --- what is known -----------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the job goes on no more, or never began."""
        return self.job.state.is_over if self.job is not None else self.asked is not OutcomeStatus.TIMED_OUT

    @property
    def is_settled(self) -> bool:
        """Whether everything is here that will ever be."""
        if self.job is None or not self.is_over:
            return self.is_over
        return not (self._lacks_result() or self._lacks_scalars()) or self._asks >= GIVE_UP_AFTER

    def _lacks_result(self) -> bool:
        succeeded = self.job is not None and self.job.state is JobState.SUCCEEDED
        return succeeded and self.result is None and not self._result_gone

    def _lacks_scalars(self) -> bool:
        return self._next_scalar < self._expected

    # --- what is heard -----------------------------------------------------------------------------------------------

    def job_said(self, job: Job, now: float) -> None:
        """Take what the node says of the job; one that is over stays over."""
        self._heard(now)
        if (
            self.job is not None
            and not self._forgotten
            and (self.job.state.is_over or (job.state is JobState.STARTING and self.job.state is JobState.RUNNING))
        ):
            return
        self._forgotten = False
        self.job, self.asked, self.reason = job, OutcomeStatus.OK, ""
        self._expected = max(self._expected, min(job.scalars, MAX_SCALARS_KEPT))
        if job.state.is_over:
            self._may_ask_at = now

    def result_said(self, result: Parcel | None, *, final: bool) -> None:
        """Take what the node says of the result; ``final`` when there is none if it says none."""
        self.result = self.result or result
        self._result_gone = final and self.result is None

    def scalar_heard(self, scalar: Scalar, now: float) -> Scalar | None:
        """Take a live scalar; return it when it is new."""
        self._news_at = now
        self._expected = max(self._expected, min(scalar.number + 1, MAX_SCALARS_KEPT))
        if self.job is not None and self.job.state is JobState.STARTING:
            self.job = msgspec.structs.replace(self.job, state=JobState.RUNNING)  # only what runs reports
        return self._kept(scalar)

    def page_said(self, scalars: Sequence[Scalar], now: float) -> list[Scalar]:
        """Take a page of scalars from the first missing one on; return those that are new."""
        self._heard(now)
        # A page has all that the node keeps up to its last: what is not among them, and with an empty page what was
        # announced, it keeps no more. A plan that reports without end leaves such a gap before nearly each one.
        asked_from = self._next_scalar
        new = [scalar for scalar in scalars if self._kept(scalar) is not None]
        reached = max((scalar.number + 1 for scalar in scalars), default=self._expected)
        page = range(asked_from, min(reached, MAX_SCALARS_KEPT))
        self.scalars_lost += sum(number not in self.scalars for number in page)
        self._next_scalar = max(self._next_scalar, page.stop)
        self._advance()
        return new

    def refused_to_say(self, reason: str, now: float) -> None:
        """Take that the node does not tell how the job stands."""
        self._heard(now)
        self.reason = reason

    def not_known(self, reason: str, now: float) -> None:
        """Take that the node knows of no such job: it did not begin, or the node has lost all memory of it."""
        self._heard(now)
        if self.job is None:
            self.asked, self.reason = OutcomeStatus.FAILED, reason or "the node does not know the job: it did not begin"
        elif not self.job.state.is_over:
            said = reason or "the node does not know the job any more"
            self.job, self._forgotten = msgspec.structs.replace(self.job, state=JobState.LOST, reason=said), True
        self._result_gone = self.result is None
        self._expected = self._next_scalar

    def _heard(self, now: float) -> None:
        self._news_at, self._asks = now, 0
        self._may_ask_at = now if self.is_over else now + PACE_S

    def _kept(self, scalar: Scalar) -> Scalar | None:
        if scalar.number in self.scalars or scalar.number >= MAX_SCALARS_KEPT:
            return None
        self._bytes += sum(len(name) + _VALUE_BYTES for name in scalar.values)
        if self._bytes > MAX_SCALARS_BYTES:
            self.scalars_lost += 1
            scalar = msgspec.structs.replace(scalar, values={})
        self.scalars[scalar.number] = scalar
        self._advance()
        return scalar if scalar.values else None

    def _advance(self) -> None:
        while self._next_scalar in self.scalars:
            self._next_scalar += 1

    def may_have_missed(self, now: float) -> None:
        """Hear that the node came up, or our own connection: what it sent meanwhile did not reach us."""
        self._asks, self._quiet_s = 0, QUIET_S
        self._may_ask_at = now
        self._news_at = now - QUIET_S

    # --- what is to be asked -----------------------------------------------------------------------------------------

    def question(self, now: float) -> dict[str, Any] | None:
        """Return the fields of the question that is due now, or null."""
        due_at = self.due_at()
        if due_at is None or due_at > now:
            return None
        self._asks += 1
        self._may_ask_at = now + min(RETRY_S * 2 ** (self._asks - 1), LONGEST_RETRY_S)
        if self.is_over and self._lacks_result():
            return {"result": True}
        if not self.is_over:
            self._quiet_s = min(2 * self._quiet_s, LONGEST_QUIET_S)
        return {"scalars_from": self._next_scalar}

    def due_at(self) -> float | None:
        """Return when the next question is due, null for never."""
        if self.is_settled:
            return None
        if self.is_over or self._lacks_scalars():
            return self._may_ask_at
        return max(self._may_ask_at, self._news_at + self._quiet_s)
