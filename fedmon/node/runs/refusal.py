"""What a node says to a run that it does not start."""

from __future__ import annotations

from fedmon.common.errors import FedmonError
from fedmon.common.wire.messages import ErrorCode


class RunRefusedError(FedmonError):
    """A run, a stop or a question about a job is refused; the message says why and what would help."""

    exit_code = 4

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def switched_off() -> RunRefusedError:
    """Return what a node says that runs no plans."""
    return RunRefusedError(
        ErrorCode.UNSUPPORTED, "this node runs no plans: its owner would allow it with `enabled = true` in [runs]"
    )
