"""What can go wrong with a broker, its users and its file repository."""

from __future__ import annotations

from fedmon.common.errors import FedmonError


class BrokerError(FedmonError):
    """The root of the errors of this package."""


class EngineMissingError(BrokerError):
    """The wanted engine is not installed on this machine."""


class PortInUseError(BrokerError):
    """Another process listens on the wanted address; a broker of unknown origin is never adopted."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"port {port} of {host} is in use by another process; stop that process, or choose another port "
            f"with --port (0 picks a free one)"
        )
        self.host, self.port = host, port


class UnsafeListenerError(BrokerError):
    """The broker would be open to the network without users or TLS."""


class BrokerStartError(BrokerError):
    """The broker's process ended, or did not answer, before it was ready; carries the end of its log."""
