"""The names of a job's hosts, from what schedulers tell in an environment."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence

from fedmon.node.collectors.files import READ_FLAGS

MAX_HOSTS = 65_536
"""SLURM itself allows no more nodes. Source: SLURM slurm.h, MAX_SLURM_NODES (65533)."""

_MAX_FILE_BYTES = 16_777_216
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")


def expand(text: str) -> tuple[str, ...] | None:
    """Return the hosts of a SLURM list such as ``n[1-3,07-09],gpu1`` in its order; None when it cannot be one.

    A number keeps the width in which its range begins. Several brackets in a name give every combination.
    Source: scontrol(1), "show hostnames".
    """
    found: dict[str, None] = {}
    for expression in _split(text):
        names = _names(expression, MAX_HOSTS - len(found))
        if names is None or not all(map(_NAME.fullmatch, names)):
            return None
        found.update(dict.fromkeys(names))
    return tuple(found) or None


def from_file(path: str) -> tuple[str, ...] | None:
    """Return the hosts of a file with a host a line, each once, in its order; None when it cannot be one.

    PBS and OAR write a line for each CPU. Only a plain file is read, and no more than 16 MiB of it.
    """
    try:
        descriptor = os.open(path, READ_FLAGS)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(os.dup(descriptor), "rb") as file:
            # Some files of the kernel look plain and would block; those say nothing now.
            text = (file.read(_MAX_FILE_BYTES) or b"").decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
    names = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not names or len(names) > MAX_HOSTS or not all(map(_NAME.fullmatch, names)):
        return None
    return tuple(names)


def own_name(hostname: str, nodes: Sequence[str] | None) -> str:
    """Return the name that a scheduler's list has for this host; the given one where the list has none."""
    if not nodes or hostname in nodes:
        return hostname
    short = hostname.partition(".")[0]
    same = [node for node in nodes if node.partition(".")[0] == short]
    return same[0] if len(same) == 1 else hostname


def _split(text: str) -> list[str]:
    """Split at the commas that stand outside of brackets."""
    parts, depth, begin = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[begin:index])
            begin = index + 1
    return [*parts, text[begin:]]


def _names(expression: str, limit: int) -> list[str] | None:
    if "".join(found[0] for found in _PIECE.finditer(expression)) != expression:
        return None
    names = [""]
    for found in _PIECE.finditer(expression):
        endings = [found[2]] if found[1] is None else _numbers(found[1], limit)
        if not endings or len(names) * len(endings) > limit:
            return None
        names = [name + ending for name in names for ending in endings]
    return names


def _numbers(text: str, limit: int) -> list[str] | None:
    found: list[str] = []
    for part in text.split(","):
        numbers = _RANGE.fullmatch(part)
        if numbers is None:
            return None
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if last < first or last - first >= limit - len(found):
            return None
        found += [f"{number:0{len(numbers[1])}}" for number in range(first, last + 1)]
    return found
