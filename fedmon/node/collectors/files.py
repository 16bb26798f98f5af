"""Kernel files: readers of single files, and collectors with one table per source."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import metric_name
from fedmon.common.text import natural
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why, why

Values = dict[str, float | None]
Reasons = dict[str, str]

PROBE = Instant(t=0.0, mono=0.0)
"""The instant of a reading for a report."""

TICKS_PER_S, PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_MAX_BYTES = 65_536
_OF_THE_KERNEL = ("/proc/", "/sys/")


class KernelFile:
    """A file under a root such as /proc that stays open, since opening costs more than reading; used by one thread.

    The kernel writes the text anew at each read from offset 0. A file of a test tree is opened each time: an open one
    would outlive its removal.
    """

    def __init__(self, path: Path, *, size_bytes: int = 16_384) -> None:
        self.path = path
        self._size = size_bytes
        self._fd: int | None = None
        self._stands_in = not str(path).startswith(_OF_THE_KERNEL)

    def head(self) -> bytes:
        """Return one read: enough for a file that the kernel writes in one piece, or for its first line.

        Raises CollectorUnavailableError if the file cannot be read.
        """
        try:
            return os.pread(self._descriptor(), self._size, 0)
        except OSError as error:
            raise self._unavailable(error) from None

    def read(self) -> bytes:
        """Return the whole file; one read gives a page at most. Raises CollectorUnavailableError as `head` does."""
        try:
            descriptor = self._descriptor()
            text = chunk = os.pread(descriptor, self._size, 0)
            while chunk:
                chunk = os.pread(descriptor, self._size, len(text))
                text += chunk
        except OSError as error:
            raise self._unavailable(error) from None
        return text

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _descriptor(self) -> int:
        if self._stands_in:
            self.close()
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDONLY)
        return self._fd

    def _unavailable(self, error: OSError) -> CollectorUnavailableError:
        # A device or process that went away leaves a dead descriptor behind: open again next time.
        self.close()
        error.filename = str(self.path)
        return why(error)

    def __del__(self) -> None:
        self.close()


class SourceCollector:
    """A collector of one source.

    A source that this machine does not have gives nothing, and `probe` gives the reason.
    """

    probe_changed = False
    """Whether series came, went or had gaps since the last report."""

    def __init__(
        self, name: str, lane: Lane, metrics: Iterable[str], *, where: object, untold: str = "",
        files: Iterable[KernelFile] = (),
    ) -> None:  # fmt: skip
        self.name, self.lane, self._files = name, lane, tuple(files)
        self._metrics, self._where = tuple(metrics), where
        self._untold = untold or f"{Why.UNSUPPORTED.value}: {where} of this kernel does not have it"
        self._given = self._reported = frozenset[str](), frozenset[str]()
        """The series and the gaps of the last reading, and those of the last report."""

    def collect(self, now: Instant) -> Reading:
        """Read the source once. Raises CollectorUnavailableError if it exists and fails."""
        try:
            values, reasons = self._checked(now)
        except CollectorUnavailableError as error:
            if not error.is_lack:
                raise
            values, reasons = {}, {}
        if values.keys() != self._given[0] or reasons.keys() != self._given[1]:
            self._given = frozenset(values), frozenset(reasons)
            self.probe_changed |= self._given != self._reported
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Map each metric, and each failing series, to None if it is measured, else to the reason."""
        try:
            values, reasons = self._checked(PROBE)
        except CollectorUnavailableError as error:
            self.probe_changed, self._reported = False, (frozenset(), frozenset())
            return dict.fromkeys(self._metrics, error.reason)
        self.probe_changed, self._reported = False, (frozenset(values), frozenset(reasons))
        gaps = {key: reason for key, reason in reasons.items() if reason != Why.FIRST_SAMPLE.value}
        return dict.fromkeys(self._metrics, self._untold) | reported(values.keys() - gaps.keys(), gaps)

    def close(self) -> None:
        """Close the files; the next reading opens them again."""
        for file in self._files:
            file.close()

    def _read(self, now: Instant) -> tuple[Values, Reasons]:
        """Return values, and a reason for each None. Raises CollectorUnavailableError, ValueError or IndexError."""
        raise NotImplementedError

    def _checked(self, now: Instant) -> tuple[Values, Reasons]:
        try:
            return self._read(now)
        except (ValueError, IndexError) as error:
            raise CollectorUnavailableError(Why.FAILED, f"{self._where}: {error}"[:200]) from None


class FileCollector(SourceCollector):
    """A collector of one kernel file, which is well-formed or unreadable as a whole; a None has no first value yet."""

    def __init__(
        self, name: str, lane: Lane, path: Path, parse: Callable[[bytes], Values], metrics: Iterable[str],
        *, size_bytes: int = 16_384, is_long: bool = False, untold: str = "",
    ) -> None:  # fmt: skip
        file = KernelFile(path, size_bytes=size_bytes)
        super().__init__(name, lane, metrics, where=path, untold=untold, files=[file])
        self._text, self._parse = file.read if is_long else file.head, parse

    def _read(self, _now: Instant) -> tuple[Values, Reasons]:
        values = self._parse(self._text())
        return values, awaited(values)


class KeyedFile:
    """Parses lines of a key and a number; a key that this kernel lacks leaves its metric out.

    The table maps a metric to its key, the space or colon behind it included, and to a factor.
    """

    def __init__(self, table: Mapping[str, tuple[bytes, int]]) -> None:
        self._table = [(metric, b"\n" + key, factor) for metric, (key, factor) in table.items()]

    def __call__(self, text: bytes) -> Values:
        """Return the metrics."""
        text = b"\n" + text
        values: Values = {}
        position = 0
        for metric, key, factor in self._table:
            # With a table in the kernel's order, each key is found behind the one before it.
            start = text.find(key, position)
            if start < 0 and (start := text.find(key)) < 0:
                continue
            position = start + len(key)
            values[metric] = int(text[position : position + 40].split(None, 1)[0]) * factor
        return values


class RowFile:
    """Parses one row per device, whose name stands in column ``name``, behind ``header`` lines.

    ``choose`` maps the names of all devices to the series of those that are reported; ``columns`` has the column,
    factor and divisor of each of these series.
    """

    def __init__(
        self,
        choose: Callable[[tuple[bytes, ...]], dict[bytes, tuple[str, ...]]],
        columns: Iterable[tuple[int, int, int]],
        *,
        name: int,
        header: int = 0,
    ) -> None:
        self._choose, self._columns, self._name, self._header = choose, tuple(columns), name, header
        self._names: tuple[bytes, ...] = ()
        self._series: dict[bytes, tuple[str, ...]] = {}

    def __call__(self, text: bytes) -> Values:
        """Return the series of each reported device."""
        lines = text.replace(b":", b" ").splitlines()[self._header :]
        at = self._name
        names = tuple([line.split(None, at + 1)[at] for line in lines])
        if names != self._names:
            self._names, self._series = names, self._choose(names)
        values: Values = {}
        for name, line in zip(names, lines, strict=True):
            keys = self._series.get(name)
            if keys is not None:
                words = line.split()
                for key, (column, factor, divisor) in zip(keys, self._columns, strict=True):
                    number = int(words[column]) * factor
                    values[key] = number if divisor == 1 else number / divisor
        return values


def read_bytes(path: Path | str) -> bytes:
    """Return a file's content, up to 64 KiB. Raises CollectorUnavailableError if the file cannot be read."""
    try:
        return read_file(path, _MAX_BYTES)
    except OSError as error:
        error.filename = str(path)
        raise why(error) from None


def read_text(path: Path) -> str:
    """Return a file's text, stripped. Raises CollectorUnavailableError."""
    return read_bytes(path).decode(errors="replace").strip("\0 \t\r\n")


def text_or(path: Path, default: str = "") -> str:
    """Return a file's text, or a default if it is empty or cannot be read."""
    try:
        return read_text(path) or default
    except CollectorUnavailableError:
        return default


def read_number(path: Path | str) -> int:
    """Return the whole number that a file holds. Raises CollectorUnavailableError."""
    text = read_bytes(path)
    try:
        return int(text)
    except ValueError:
        raise garbled(path, text) from None


def entries(folder: Path, pattern: str = "") -> list[str]:
    """Return the names in a folder that match a pattern as a whole, ``x2`` before ``x10``; all without a pattern.

    Raises CollectorUnavailableError if the folder cannot be read.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is wanted, and there are thousands
    except OSError as error:
        error.filename = str(folder)
        raise why(error) from None
    matching = re.compile(pattern or ".*", re.DOTALL)
    return sorted(filter(matching.fullmatch, names), key=natural)


def entries_or_none(folder: Path, pattern: str = "") -> list[str]:
    """Return the same, or nothing if the folder cannot be read."""
    try:
        return entries(folder, pattern)
    except CollectorUnavailableError:
        return []


def garbled(path: Path | str, text: bytes) -> CollectorUnavailableError:
    """Return the error of a malformed file, with its beginning."""
    shown = text[:40].decode(errors="replace")
    return CollectorUnavailableError(
        Why.FAILED, f"{path}: " + (f"{shown!r} cannot be parsed" if text.strip() else "is empty")
    )


def reported(measured: Iterable[str], gaps: dict[str, str]) -> dict[str, str | None]:
    """Return the report of these series: a metric is measured if one of its series is, and then its gaps are named."""
    report: dict[str, str | None]
    report = {metric_name(key): reason for key, reason in reversed(gaps.items())}  # the first reason remains
    report |= dict.fromkeys(map(metric_name, measured))
    return report | {key: reason for key, reason in gaps.items() if report[metric_name(key)] is None}


def awaited(values: Values) -> Reasons:
    """Return the reason of each None in a group of which only a first value can be missing."""
    return {key: Why.FIRST_SAMPLE.value for key, value in values.items() if value is None}


def miss(values: Values, reasons: Reasons, keys: Iterable[str], reason: str) -> None:
    """Note in a reading that these series could not be read."""
    for key in keys:
        values[key] = None
        reasons[key] = reason


def note(values: Values, reasons: Reasons, key: str, read: Callable[..., float], *given: object) -> None:
    """Note one series in a reading, or that it could not be read."""
    try:
        values[key] = read(*given)
    except CollectorUnavailableError as error:
        miss(values, reasons, (key,), error.reason)


def read_file(path: bytes | str | Path, size: int) -> bytes:
    """Return the beginning of a file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def read_whole(path: bytes) -> bytes:
    """Return a file that the kernel may hand out a page at a time. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return file.read()
