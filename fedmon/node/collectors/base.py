"""The interface of all collectors, and the reasons of missing values."""

from __future__ import annotations

import enum
import errno
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.metrics.sample import Instant


class Why(enum.Enum):
    """Why a value is missing; every reason begins with one of these words."""

    UNSUPPORTED = "unsupported"
    NO_PERMISSION = "no permission"
    NOT_FOUND = "not found"
    FAILED = "failed"
    FIRST_SAMPLE = "first sample"


class CollectorUnavailableError(FedmonError):
    """A source of metrics cannot be read; the text is a reason that begins with a word of Why."""

    @property
    def is_lack(self) -> bool:
        """Whether this machine does not have the source at all, rather than refuses it or fails."""
        return self.why in (Why.UNSUPPORTED, Why.NOT_FOUND)

    def __init__(self, why: Why, detail: str) -> None:
        self.why = why
        self.reason = f"{why.value}: {detail}"
        super().__init__(self.reason)

    @classmethod
    def of(cls, error: BaseException, whose: str = "") -> CollectorUnavailableError:
        """Return such an error itself, and for any other one a failure with its type and text."""
        text = f"{whose}{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return error if isinstance(error, cls) else cls(Why.FAILED, text)


class Lane(enum.Enum):
    """How often a collector is read at most; the fast lane is read at each tick. Values in seconds."""

    FAST = 0.0
    MEDIUM = 10.0
    SLOW = 60.0


class Roots(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of a machine's files: this machine's, or a tree that stands in for another one."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cgroup: Path = Path("/sys/fs/cgroup")

    @property
    def simulated(self) -> bool:
        """Whether any of them is not this machine's own."""
        return self != THIS_MACHINE


THIS_MACHINE = Roots()
"""The roots of the machine that this process runs on."""


class Reading(NamedTuple):
    """The values of a collector at one tick by series, and for each None the reason."""

    values: Mapping[str, float | None]
    reasons: Mapping[str, str] = {}


class Collector(Protocol):
    """Reads one source of metrics.

    ``collect`` is called from the sampler's thread only and delays all other collectors, so it must return within a
    fraction of a tick. A series that it cannot read this once is None with a reason; a metric that this machine does
    not have is left out, and ``probe`` gives the reason. If it raises, the other collectors go on, and the series that
    it gave before become None with the error as the reason. A collector whose report changes later may have a property
    ``probe_changed``, true once after that: then it is read and probed again, whatever its lane. One that keeps
    something back may have a method ``ending``, called when only one reading is left, from the same thread.
    """

    @property
    def name(self) -> str:
        """Return the word under which this collector is reported."""

    @property
    def lane(self) -> Lane:
        """Return how often this collector is read: with each tick, or when its lane's time is over."""

    def collect(self, now: Instant, /) -> Reading:
        """Read everything once; ``now`` is the instant that all collectors of this tick share."""

    def probe(self) -> Mapping[str, str | None]:
        """Map each metric of this collector (or one series of it) to None when it is measured, else to the reason."""


def why(error: OSError) -> CollectorUnavailableError:
    """Convert an operating system error into a reason."""
    where = f"{error.filename}" if error.filename else (error.strerror or type(error).__name__)
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        return CollectorUnavailableError(Why.NOT_FOUND, where)
    if isinstance(error, PermissionError):
        return CollectorUnavailableError(Why.NO_PERMISSION, where)
    if error.errno == errno.EOPNOTSUPP:  # the kernel has it switched off, such as pressure without psi=1
        return CollectorUnavailableError(Why.UNSUPPORTED, where)
    detail = error.strerror or type(error).__name__
    return CollectorUnavailableError(Why.FAILED, f"{where}: {detail}" if error.filename else detail)
