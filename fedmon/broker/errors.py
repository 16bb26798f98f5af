"""The errors of brokers, their users and the file repository."""

from __future__ import annotations

from fedmon.common.errors import FedmonError


class BrokerError(FedmonError):
    """The root of the errors of this package."""


class EngineMissingError(BrokerError):
    """The wanted engine is not installed on this machine."""

    exit_code = 3


class PortInUseError(BrokerError):
    """Another process listens on the wanted address; a broker of unknown origin is never adopted."""

    exit_code = 4

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"port {port} of {host} is in use by another process; stop that process, or choose another port "
            f"with --port (0 picks a free one)"
        )
        self.host, self.port = host, port


class UnsafeListenerError(BrokerError):
    """The broker would be open to the network without users or TLS."""

    exit_code = 4


class BrokerStartError(BrokerError):
    """The broker's process ended, or did not answer, before it was ready; carries the end of its log."""


class NameTakenError(BrokerError):
    """The name belongs to another user or to batch jobs, or the party has a token already."""

    exit_code = 4


class UnknownUserError(BrokerError):
    """No such user, or no such party with a token."""

    exit_code = 3


class UploadRefusedError(BrokerError):
    """The repository does not take an upload; ``status`` is the HTTP status that says so."""

    def __init__(self, reason: str, *, status: int) -> None:
        super().__init__(reason)
        self.status = status
