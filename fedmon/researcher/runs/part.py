"""One node's part in a run: its answers, outcome and scalars, and the question for the missing ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fedmon.common.backoff import Backoff
from fedmon.common.ids import NodeId
from fedmon.common.wire.runs import JobReport, JobState, Parcel, Scalar
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.runs.states import NodeRun

MAX_SCALARS_KEPT = 100_000
MAX_SCALARS_BYTES = 64 * 2**20
"""Of one node; later ones are not kept, so that no plan fills the memory of its researcher."""
QUIET_S = 1.25
LONGEST_QUIET_S = 16.0
"""After so long without a message about a running job, doubling, its node is asked: it may run or be over by now.

Nodes send the reports of a plan once a second, and these say that it runs.
"""
PACE_S = 0.5
"""Missed scalars are asked for at most so often while the job runs."""
RETRY_S = 2.0
LONGEST_RETRY_S = 30.0
GIVE_UP_AFTER = 4
"""Questions about a job that is over which its node leaves unanswered until the missing parts count as lost."""
_VALUE_BYTES = 128
"""Memory of a value beside its name, about."""

Question = dict[str, Any]
"""The fields of a JobStatus."""


def _stage(state: JobState) -> int:
    early = (JobState.STARTING, JobState.RUNNING, JobState.HELD)
    return early.index(state) if state in early else len(early)


class Part:
    """One node's part in a run: its answers so far, and the next question; belongs to the lock of its run.

    ``asked`` is the outcome of asking it to run.
    """

    def __init__(self, node_id: NodeId, *, now: float) -> None:
        self.node_id, self.asked, self.reason = node_id, OutcomeStatus.TIMED_OUT, ""
        self.job: JobReport | None = None
        self.result: Parcel | None = None
        self.scalars: dict[int, Scalar] = {}
        self.scalars_lost = self._bytes = self._next_scalar = self._expected = 0
        self._retry = Backoff(RETRY_S, longest_s=LONGEST_RETRY_S)
        self._quiet_s = QUIET_S
        self._result_gone = self._forgotten = False
        self._news_at = self._may_ask_at = now

    @property
    def is_over(self) -> bool:
        """Whether the plan has ended, or never began."""
        return not self.job.state.is_running if self.job is not None else self.asked is not OutcomeStatus.TIMED_OUT

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will come."""
        if self.job is None or not self.is_over:
            return self.is_over
        return not (self._lacks_result() or self._lacks_scalars()) or self._retry.attempts >= GIVE_UP_AFTER

    @property
    def has_result(self) -> bool:
        """Whether the job succeeded, and its result came or will not come."""
        is_known = self.is_settled or self.result is not None
        return is_known and self.job is not None and self.job.state is JobState.SUCCEEDED

    @property
    def in_order(self) -> list[Scalar]:
        """The scalars, by number."""
        return [self.scalars[number] for number in sorted(self.scalars)]

    @property
    def lost(self) -> int:
        """The number of scalars that will not come, or are more than are kept."""
        if not self.is_settled or self.job is None:
            return self.scalars_lost
        missing = sum(number not in self.scalars for number in range(self._next_scalar, self._expected))
        return self.scalars_lost + missing + max(0, self.job.scalars - MAX_SCALARS_KEPT)

    @property
    def view(self) -> NodeRun:
        """The last state that the node reported."""
        return NodeRun(
            node_id=self.node_id,
            job=self.job,
            asked=self.asked,
            reason=self.reason,
            scalars=len(self.scalars),
            latest=self.scalars[max(self.scalars)].values if self.scalars else {},
            result=self.result is not None,
        )

    def _lacks_result(self) -> bool:
        succeeded = self.job is not None and self.job.state is JobState.SUCCEEDED
        return succeeded and self.result is None and not self._result_gone

    def _lacks_scalars(self) -> bool:
        return self._next_scalar < self._expected

    # --- answers ------------------------------------------------------------------------------------------------------

    def knows(self, job: JobReport, question: Mapping[str, Any]) -> bool:
        """Tell whether an answer brings nothing: the job is over, and another one brought these scalars.

        Else each of several late answers would have the next page asked for, and so each of their answers.
        """
        is_same = self.job is not None and self.job.state is job.state and not job.state.is_running
        return is_same and question.get("scalars_from", self._next_scalar) < self._next_scalar

    def job_said(self, job: JobReport, now: float) -> None:
        """Take the state of the job; no earlier one follows, and one that is over stays over."""
        self._heard(now)
        known = None if self.job is None or self._forgotten else self.job.state
        if known is not None and (known.is_final or _stage(job.state) < _stage(known)):
            return
        self._forgotten = self._result_gone = False
        self.job, self.asked = job, OutcomeStatus.OK
        self._expected = max(self._expected, min(job.scalars, MAX_SCALARS_KEPT))
        if job.state.is_final:
            self._may_ask_at = now

    def result_said(self, result: Parcel | None, *, final: bool) -> None:
        """Take the result; ``final`` if a missing one means none."""
        self.result = self.result or result
        self._result_gone = final and self.result is None

    def scalar_heard(self, scalar: Scalar, now: float) -> Scalar | None:
        """Take a live scalar; return it if it is new."""
        self._news_at = now
        self._expected = max(self._expected, min(scalar.number + 1, MAX_SCALARS_KEPT))
        if self.job is not None and self.job.state is JobState.STARTING:
            self.job = msgspec.structs.replace(self.job, state=JobState.RUNNING)  # only a running plan reports
        return self._kept(scalar)

    def page_said(self, scalars: Sequence[Scalar], now: float) -> list[Scalar]:
        """Take a page of scalars from the first missing one on; return the new ones."""
        self._heard(now)
        # A page has all that the node keeps up to its last: the others, and with an empty page all that were
        # announced, it no longer keeps. A plan that reports without end leaves such a gap before nearly each page.
        asked_from = self._next_scalar
        new = [scalar for scalar in scalars if self._kept(scalar) is not None]
        reached = max((scalar.number + 1 for scalar in scalars), default=self._expected)
        page = range(asked_from, min(reached, MAX_SCALARS_KEPT))
        self.scalars_lost += sum(number not in self.scalars for number in page)
        self._next_scalar = max(self._next_scalar, page.stop)
        self._advance()
        return new

    def refused_to_say(self, reason: str, now: float, *, pause_s: float) -> None:
        """Note that the node does not tell the state of the job; it is asked again after a pause."""
        self._heard(now)
        self._may_ask_at = now + min(max(pause_s, RETRY_S), LONGEST_RETRY_S)
        self.reason = reason

    def not_known(self, now: float) -> None:
        """Note that the node knows no such job: it did not begin, or the node has forgotten it."""
        self._heard(now)
        if self.job is None:
            self.asked, self.reason = OutcomeStatus.FAILED, "the node does not know the job: it did not begin"
        elif not self.job.state.is_final:
            said = "the node no longer knows the job"
            self.job, self._forgotten = msgspec.structs.replace(self.job, state=JobState.LOST, reason=said), True
        self._result_gone = self.result is None
        self._expected = self._next_scalar

    def may_have_missed(self, now: float) -> None:
        """Note that the node, or our own connection, came up: messages in between did not reach us."""
        self._retry.reset()
        self._quiet_s = QUIET_S
        self._may_ask_at = now
        self._news_at = now - QUIET_S

    def _heard(self, now: float) -> None:
        self._news_at, self.reason = now, ""
        self._retry.reset()
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

    # --- questions ----------------------------------------------------------------------------------------------------

    def question(self, now: float) -> Question | None:
        """Return the question that is due now, or None."""
        due_at = self.due_at()
        if due_at is None or due_at > now:
            return None
        self._may_ask_at = now + self._retry.next_s()
        if self.is_over and self._lacks_result():
            return {"result": True}
        if not self.is_over:
            self._quiet_s = min(2 * self._quiet_s, LONGEST_QUIET_S)
        return {"scalars_from": self._next_scalar}

    def due_at(self) -> float | None:
        """Return when the next question is due, None for never."""
        if self.is_settled:
            return None
        if self.is_over or self._lacks_scalars():
            return self._may_ask_at
        return max(self._may_ask_at, self._news_at + self._quiet_s)
