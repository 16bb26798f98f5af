"""The errors of fedmon: the class tells the caller what to do, the message names the error, its place and remedy."""

from __future__ import annotations


class FedmonError(Exception):
    """The root of every error that fedmon raises on purpose.

    ``exit_code`` is the exit code of a shell verb: 1 failed, 2 usage or settings, 3 not found, 4 refused or in
    conflict, 5 no connection, 6 no answer in time.
    """

    exit_code: int = 1

    def facts(self) -> dict[str, str | int]:
        """Return the error for a program: its type, message and exit code."""
        return {"type": type(self).__name__, "message": str(self), "exit_code": self.exit_code}

    def __reduce__(self) -> tuple[object, ...]:
        # Python would call the class with the message alone; a pool of processes waits forever if that fails.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class SettingsError(FedmonError):
    """A settings file, environment variable or option holds something that is not allowed."""

    exit_code = 2


class NoAnswerError(FedmonError):
    """A party is online but did not answer in time."""

    exit_code = 6


class InvalidIdError(FedmonError, ValueError):
    """An id cannot be used in a topic, a file name or an access list."""

    exit_code = 2


class InvalidMessageError(FedmonError, ValueError):
    """Bytes from the wire are not a message of ours; `code` is the wire's error code."""

    def __init__(self, reason: str, *, code: str = "malformed") -> None:
        super().__init__(reason)
        self.reason, self.code = reason, code


class ConnectionFailedError(FedmonError):
    """The broker could not be reached or refused us; names address and cause."""

    exit_code = 5

    def __init__(self, address: str, cause: str) -> None:
        super().__init__(f"cannot connect to the broker at {address}: {cause}")
        self.address, self.cause = address, cause


class NotConnectedError(FedmonError):
    """Nothing was sent because there is no connection to the broker at the moment."""

    exit_code = 5


class FolderInUseError(FedmonError):
    """Another process holds the lock of this folder."""

    exit_code = 4


class StorageError(FedmonError):
    """A file or folder of ours cannot be read or written; names the path and the cause."""


class NotFoundError(FedmonError):
    """The named thing does not exist, or is not installed; names the remedy."""

    exit_code = 3


class ConflictError(FedmonError):
    """A request clashes with the present state or a policy; names both."""

    exit_code = 4


class InvalidInputError(FedmonError, ValueError):
    """A value, file or table of the caller cannot be used; names it and the allowed ones."""

    exit_code = 2


def untrusted(code: int, message: str, remedy: str) -> str:
    """Say by OpenSSL's code and message why a certificate is not trusted; ``remedy`` is for an unknown authority."""
    if code in (9, 10, 62, 64):  # its dates or its names do not fit: OpenSSL, x509_vfy.h
        remedy = "it must be valid now, and for the host of the URL"
    elif code >= 80:  # Python checks these from 3.13 on
        remedy = "make authority and certificate anew, as in step 2 of broker/README.md"
    return f"its certificate is not trusted: {message.rstrip('.')}; {remedy}"
