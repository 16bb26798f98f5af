"""Errors of runs: they failed on nodes, are not over in time, or have no node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmon.common.errors import FedmonError, NoAnswerError, NotFoundError
from fedmon.common.log import escape_control
from fedmon.researcher.asking.tables import by_reason

MAX_REASONS = 20


class NobodyToRunError(NoAnswerError):
    """No node to ask; the exit code is 3 if none offers it, 4 if all refuse, 6 if one is not heard, else 1."""

    def __init__(self, reason: str, *, exit_code: int = 6) -> None:
        super().__init__(f"no node to run it: {reason}")
        self.exit_code = exit_code


class RunNotKnownError(NotFoundError):
    """No node knows the job; the exit code is 3 if one said so, 4 if all refuse, 6 if one is not heard, else 1."""

    def __init__(self, reason: str, *, exit_code: int = 3) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class RunFailedError(FedmonError):
    """Nodes did not succeed: ``failed`` maps each to its reason, ``results`` holds those of the others.

    ``exit_code`` is 4 where not one node ran it, as those that were asked refused, and 6 where none could be asked, or
    answered.
    """

    def __init__(
        self, job_id: str, *, failed: Mapping[str, str], results: dict[str, dict[str, Any]], exit_code: int = 1
    ) -> None:
        super().__init__(f"{len(failed)} of {len(failed) + len(results)} nodes did not succeed: {_named(failed)}")
        self.job_id, self.failed, self.results = job_id, dict(failed), results
        self.exit_code = exit_code


class RunHeldError(RunFailedError):
    """Nodes hold their result until their owner decides, and no other failed; ``failed`` says of each why.

    Ask again later, with the same handle or with `Federation.job`: the result comes by itself, or the owner's note.
    """

    def __init__(self, job_id: str, *, failed: Mapping[str, str], results: dict[str, dict[str, Any]]) -> None:
        super().__init__(job_id, failed=failed, results=results, exit_code=NoAnswerError.exit_code)
        held = f"{len(failed)} of {len(failed) + len(results)} nodes hold their result: {_named(failed)}"
        self.args = (f"{held}; ask again later (job {job_id})",)


class RunNotOverError(NoAnswerError):
    """The time is over and nodes still run: ``unfinished`` has the state of each, ``results`` those that came."""

    def __init__(
        self, job_id: str, *, waited_s: float, unfinished: Mapping[str, str], results: dict[str, dict[str, Any]]
    ) -> None:
        super().__init__(
            f"not over within {waited_s:.1f} s: {_named(unfinished)}; it goes on: wait again, or stop it (job {job_id})"
        )
        self.job_id, self.waited_s = job_id, waited_s
        self.unfinished, self.results = dict(unfinished), results


def _named(reasons: Mapping[str, str]) -> str:
    said = by_reason({node_id: escape_control(reason) for node_id, reason in reasons.items()})
    more = len(said) - MAX_REASONS
    return "; ".join(said[:MAX_REASONS]) + (f"; and {more} more reasons" if more > 0 else "")
