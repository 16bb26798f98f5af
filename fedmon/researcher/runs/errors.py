"""What can go wrong with a run: it failed on nodes, it is not over in time, or nobody takes part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmon.common.errors import FedmonError, NoAnswerError, SettingsError
from fedmon.common.log import escape_control

MAX_NODES_NAMED = 20


class RunFailedError(FedmonError):
    """Nodes did not succeed: ``failed`` says of each why, ``results`` holds what the others returned.

    ``refused`` tells whether not one node ran it at all.
    """

    def __init__(
        self, job_id: str, *, failed: Mapping[str, str], results: dict[str, dict[str, Any]], refused: bool
    ) -> None:
        super().__init__(f"{len(failed)} of {len(failed) + len(results)} nodes did not succeed: {_named(failed)}")
        self.job_id, self.failed, self.results = job_id, dict(failed), results
        self.exit_code = 4 if refused else 1


class RunNotOverError(NoAnswerError):
    """The time is over and nodes still run: ``unfinished`` says how each stands, ``results`` holds what is there."""

    def __init__(
        self, job_id: str, *, waited_s: float, unfinished: Mapping[str, str], results: dict[str, dict[str, Any]]
    ) -> None:
        super().__init__(
            f"not over within {waited_s:.1f} s: {_named(unfinished)}; it goes on: wait again, or stop it (job {job_id})"
        )
        self.job_id, self.waited_s = job_id, waited_s
        self.unfinished, self.results = dict(unfinished), results


class MissingNumpyError(SettingsError):
    """Values hold arrays, and numpy is not installed."""


def _named(reasons: Mapping[str, str]) -> str:
    named = "; ".join(f"{node_id}: {escape_control(reasons[node_id])}" for node_id in list(reasons)[:MAX_NODES_NAMED])
    more = len(reasons) - MAX_NODES_NAMED
    return f"{named}; and {more} more" if more > 0 else named
