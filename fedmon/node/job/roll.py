"""The roll of one job: which hosts began and ended, and which of them merges, as files in a folder that all share."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from fedmon.common.errors import StorageError
from fedmon.node.job.exclusive import write_once
from fedmon.node.job.layout import FILE_MODE

T = TypeVar("T")

_ENTRY = re.compile(r"([A-Za-z0-9_-]{1,64})\.(\d{1,9})\.(begin|end)")
_MERGE = re.compile(r"(\d{1,9})\.(merge|merged)")
_MAX_BYTES = 4 * 2**20


class Entry(NamedTuple):
    """One run of the tool on one host: the ``generation``-th under this node's id."""

    node_id: str
    generation: int

    def __str__(self) -> str:
        return f"{self.node_id}.{self.generation}"


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a host says of itself when it begins; ``machine`` names one boot of one machine, empty where unknown."""

    host: str
    hostname: str
    boot: int
    machine: str = ""
    pid: int = 0
    expected: int | None = None
    document: dict[str, Any] = {}


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Who merges, and which hosts had ended when it began to."""

    by: tuple[str, int]
    ended: list[tuple[str, int]]

    @property
    def entry(self) -> Entry:
        """Whose claim it is."""
        return Entry(*self.by)


class Seen(NamedTuple):
    """The roll at one moment; ``claim`` is the newest, ``number`` its number (0 for none), ``merged`` whether done."""

    begun: frozenset[Entry]
    ended: frozenset[Entry]
    number: int
    claim: Claim | None
    merged: bool

    @property
    def newest(self) -> Mapping[str, Entry]:
        """Map each node to its newest run: an earlier one is over, else its id would not have been given again."""
        return {entry.node_id: entry for entry in sorted(self.begun)}

    @property
    def running(self) -> list[Entry]:
        """Those that began and did not say that they ended."""
        return [entry for entry in self.newest.values() if entry not in self.ended]

    @property
    def covered(self) -> bool:
        """Whether a merge that is done began after everybody ended who has ended now."""
        return self.merged and self.claim is not None and self.ended <= {Entry(*each) for each in self.claim.ended}


class Roll:
    """The folder of a job's roll; every file in it is written once by one host, but for beats and locks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def see(self) -> Seen:
        """Read the roll as it is now. Raises StorageError."""
        self._freshen()
        names: Iterable[str]
        try:
            names = os.listdir(self.folder)  # noqa: PTH208  # names are all that is needed
        except OSError as error:
            raise StorageError(f"cannot read {self.folder}: {error.strerror}") from error
        found: dict[str, set[Entry]] = {"begin": set(), "end": set()}
        claims: dict[str, set[int]] = {"merge": set(), "merged": set()}
        for name in names:
            if entry := _ENTRY.fullmatch(name):
                found[entry[3]].add(Entry(entry[1], int(entry[2])))
            elif merge := _MERGE.fullmatch(name):
                claims[merge[2]].add(int(merge[1]))
        number = max(claims["merge"], default=0)
        claim = self._read(f"{number}.merge", Claim) if number else None
        return Seen(frozenset(found["begin"]), frozenset(found["end"]), number, claim, number in claims["merged"])

    def begin(self, entry: Entry, registration: Registration) -> bool:
        """Register a run; False when it is registered already."""
        return write_once(self.folder / f"{entry}.begin", msgspec.json.encode(registration))

    def end(self, entry: Entry, document: Mapping[str, Any]) -> None:
        """Say that a run ended."""
        write_once(self.folder / f"{entry}.end", msgspec.json.encode(dict(document)))

    def registration(self, entry: Entry) -> Registration | None:
        """Return what a host said of itself; None where it is unreadable."""
        return self._read(f"{entry}.begin", Registration)

    def ending(self, entry: Entry) -> dict[str, Any] | None:
        """Return what a host said at its end; None when it did not."""
        return self._read(f"{entry}.end", dict[str, Any])

    def claim(self, number: int, claim: Claim) -> bool:
        """Claim to be the one that merges; False when another was faster."""
        return write_once(self.folder / f"{number}.merge", msgspec.json.encode(claim))

    def merged(self, number: int) -> None:
        """Say that what a claim announced is done."""
        write_once(self.folder / f"{number}.merged", b"{}")

    def beat(self, entry: Entry, content: bytes, *, sync: bool = False) -> os.stat_result:
        """Write a sign of life, and return what is known of its file: the file server's word with ``sync``.

        Raises OSError.
        """
        descriptor = os.open(
            self.folder / f"{entry}.beat", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE
        )
        try:
            os.pwrite(descriptor, content, 0)
            if sync:
                os.fsync(descriptor)
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def last_beat(self, entry: Entry) -> bytes:
        """Return the last sign of life, empty when there was none; opened anew, so that it is the file server's."""
        try:
            return (self.folder / f"{entry}.beat").read_bytes()[:100]
        except OSError:
            return b""

    def began(self, entry: Entry) -> float:
        """Return when a run began by the file server's clock, in Unix seconds; 0 where that is not known."""
        return self._changed(f"{entry}.begin")

    def last_sign(self, entry: Entry) -> float:
        """Return when a run last moved by the file server's clock, in Unix seconds; 0 where there was none."""
        return max(self._changed(f"{entry}.{kind}") for kind in ("begin", "beat", "end"))

    def lock_file(self, node_id: str) -> Path:
        """Return the file whose lock a host holds for as long as it lives."""
        return self.folder / f"{node_id}.lock"

    def _freshen(self) -> None:
        """Change the folder, so that no list of it from a file system's memory is taken for the present one."""
        probe = self.folder / f".look-{os.urandom(8).hex()}"
        with contextlib.suppress(OSError):
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
            probe.unlink()

    def _changed(self, name: str) -> float:
        try:
            return (self.folder / name).stat().st_mtime
        except OSError:
            return 0.0

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            with (self.folder / name).open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_BYTES), type=kind)
        except (OSError, msgspec.DecodeError):
            return None
