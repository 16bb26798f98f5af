"""Ids that are safe in topics, access lists and file names; ids that sort by time; ids kept in a party's folder."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NewType

from fedmon.common.errors import ConflictError, InvalidIdError, InvalidInputError, NotFoundError, StorageError
from fedmon.common.files import TargetExistsError, storage_errors, write_whole

NodeId = NewType("NodeId", str)
ResearcherId = NewType("ResearcherId", str)
InstanceId = NewType("InstanceId", str)

MAIN_INSTANCE = InstanceId("main")
ALL_INSTANCES = InstanceId("all")
"""Topic level under which a decision reaches every instance of a researcher."""

RESERVED_IDS = frozenset({"nodes", "researcher", "monitoring", "logger", "status", "all"})
"""Words that are topic levels of the wire; a party with such an id could not be told from them."""

JOB_PREFIX = "job-"
"""How the node id of each host of a batch job begins, and at a broker with users no other."""

RESEARCHER_FILE = "researcher_id"
CLIENT_FILE = "client_id"

MIN_PREFIX, MAX_NAMED = 4, 8
ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CLIENT_BITS = re.compile(r"[0-9a-f]{32}\n?")


def checked_id(text: str, *, what: str) -> str:
    """Return ``text`` when it can be a topic level on every broker.

    Raises InvalidIdError naming ``what`` and the allowed alphabet.
    """
    if not ID_PATTERN.fullmatch(text):
        raise InvalidIdError(f"{what} {text!r} is not usable: use 1 to 64 letters, digits, '_' or '-'")
    if text in RESERVED_IDS:
        raise InvalidIdError(f"{what} {text!r} is reserved; choose another than {', '.join(sorted(RESERVED_IDS))}")
    return text


def chosen(
    reference: str, ids: Mapping[str, str], *, prefix: str = "", named: Collection[str] = (), what: str, see: str
) -> str:
    """Return the id that a reference means: in full, by its beginning, or as one of those that are ``named`` so.

    ``ids`` maps ids and digests to ids; a ``prefix`` of ids may be left out, and is no beginning of one; ``see`` is the
    command that lists them. Raises InvalidInputError if less than 4 characters are given, ConflictError if several ids
    fit, and NotFoundError.
    """
    for exact in (reference, prefix + reference):
        if exact in ids:
            return ids[exact]
    given, typed = reference.removeprefix(prefix), prefix if reference.startswith(prefix) else ""
    fits = [each for each in ids if each.startswith(typed) and each.removeprefix(prefix).startswith(given)]
    shown, starts = repr(reference[:80]), {ids[each] for each in fits if given}
    found: list[str] = sorted({*named, *(starts if len(given) >= MIN_PREFIX else ())})
    if len(found) > 1:
        raise ConflictError(f"{shown} matches {len(found)} {what}s: {', '.join(found[:MAX_NAMED])}; see: {see}")
    if not found and starts:
        raise InvalidInputError(
            f"{shown} is too short: give at least {MIN_PREFIX} characters of the id{typed and f' after {typed}'}"
        )
    if not found:
        raise NotFoundError(f"no {what} {shown} here; see: {see}")
    return found[0]


def new_id() -> str:
    """Make a version 7 UUID: 48 bits of Unix milliseconds, then 74 random bits.

    Source: RFC 9562, section 5.7.
    """
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & ((1 << 48) - 1)) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF000 << 64) | 0x7000 << 64
    value = value & ~(0xC000 << 48) | 0x8000 << 48
    return str(uuid.UUID(int=value))


def made_at(message_id: str) -> datetime.datetime | None:
    """Return when a version 7 UUID was made by its maker's clock; None for any other id."""
    with contextlib.suppress(ValueError, OverflowError):  # of a moment after the year 9999 too
        value = uuid.UUID(message_id)
        if value.version == 7:  # RFC 9562, section 5.7
            return datetime.datetime.fromtimestamp((value.int >> 80) / 1000, datetime.UTC)
    return None


def new_party_id(prefix: str) -> str:
    """Make an id such as ``node-3f9a1c2e`` for a party that was given none."""
    return f"{prefix}-{os.urandom(4).hex()}"


def new_researcher_id() -> str:
    """Make an id such as ``anna-laptop-3f9a`` from the names of user and host, and 4 random characters."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # KeyError until Python 3.12
        user = "researcher"
    host = socket.gethostname().partition(".")[0]
    names = (re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:24] for name in (user, host))
    return "-".join([*filter(None, names), os.urandom(2).hex()])


def kept_researcher_id(folder: Path) -> str:
    """Return the id kept in ``folder``; folder and id are made if there are none. Safe among processes.

    Raises StorageError when the folder or file cannot be made or read.
    """
    path = folder / RESEARCHER_FILE
    try:
        if not path.exists():
            _keep(path, new_researcher_id())
        return checked_id(path.read_text().strip(), what=f"the id in {path}")
    except UnicodeDecodeError:
        raise StorageError(f"the id in {path} is not readable: remove that file to be given a new id") from None
    except (OSError, StorageError) as error:
        raise StorageError(
            f"cannot keep the researcher id: {error}; FEDMON_RESEARCHER_FOLDER can name another folder"
        ) from None


def kept_client_id(folder: Path, party: str) -> str:
    """Return a party's client id at the broker: its name and 128 random bits, made once and kept in ``folder``.

    A broker ends a connection when another one gives the same client id, so it is a secret. Safe among
    processes. Raises StorageError when the file cannot be made or read.
    """
    path = folder / CLIENT_FILE
    with storage_errors(path):
        with contextlib.suppress(FileNotFoundError):
            if not _CLIENT_BITS.fullmatch(path.read_text(errors="replace")):
                path.unlink()
        if not path.exists():
            _keep(path, os.urandom(16).hex())
        return f"{party}-{path.read_text().strip()}"


def _keep(path: Path, text: str) -> None:
    """Write a file whole; when two processes try at once, the first one's text stays. Raises StorageError."""
    with contextlib.suppress(TargetExistsError):
        write_whole(path, f"{text}\n".encode(), mode=0o600, folder_mode=0o700, durable=True, only_new=True)
