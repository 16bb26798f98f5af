"""Where a scheduler keeps the cgroup of a job."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from fedmon.node.collectors.job.cgroup import Cgroups, is_cgroup, members_of


def matching(cgroups: Cgroups, patterns: Sequence[str], **names: str) -> list[str]:
    """Return the paths of cgroups that match a pattern, in any hierarchy, in the order of the patterns.

    In a pattern ``{id}`` and the like stand for ``names``, taken as they are, and ``*`` for any letters of one level.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        levels = [_level(level, names) for level in pattern.strip("/").split("/")]
        for base in dict.fromkeys(cgroups.hierarchies.values()):
            for folder in _walk(base, levels):
                found[f"/{folder.relative_to(base)}"] = None
    return list(found)


def own_paths(paths: Collection[str], name: re.Pattern[str]) -> list[str]:
    """Return, of the cgroups that a process is in, the parts of their paths up to the level with a name."""
    found: dict[str, None] = {}
    for path in paths:
        parts = PurePosixPath(path).parts
        for index, part in enumerate(parts):
            if name.fullmatch(part) and ".." not in parts:
                found[str(PurePosixPath(*parts[: index + 1]))] = None
                break
    return list(found)


def exists(cgroups: Cgroups, path: str) -> bool:
    """Tell whether any hierarchy has such a cgroup."""
    return any(is_cgroup(base / path.lstrip("/")) for base in cgroups.hierarchies.values())


def members(cgroups: Cgroups, path: str) -> set[int]:
    """Return the processes of a cgroup, of all that the hierarchies have for it."""
    folders = {base / path.lstrip("/") for base in cgroups.hierarchies.values()}
    return set().union(*(members_of(folder) for folder in folders if is_cgroup(folder)))


def _level(level: str, names: dict[str, str]) -> re.Pattern[str]:
    # Split first: what a job is called must not add a star or a level of its own.
    pieces = re.split(r"(\*|\{[a-z]+\})", level)
    return re.compile(
        "".join(
            ".*" if piece == "*" else re.escape(names.get(piece[1:-1], piece) if piece.startswith("{") else piece)
            for piece in pieces
        ),
        re.DOTALL,
    )


def _walk(folder: Path, levels: Sequence[re.Pattern[str]]) -> Iterator[Path]:
    if not levels:
        if is_cgroup(folder):
            yield folder
        return
    try:
        inner = sorted(entry for entry in folder.iterdir() if levels[0].fullmatch(entry.name))
    except OSError:
        return
    for each in inner:
        if each.is_dir() and not each.is_symlink():
            yield from _walk(each, levels[1:])
