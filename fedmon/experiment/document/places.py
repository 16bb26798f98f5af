"""Where in its document each resource stands, by the lines of the file."""

from __future__ import annotations

import re

from fedmon.experiment.document.description import Description

_TOML = re.compile(r"^[ \t]*\[\[[ \t]*(?:resource|\"resource\")[ \t]*\]\]", re.MULTILINE)
_XML = re.compile(r"<rm\b[^<>]*?\bguid\s*=\s*[\"'](\d+)[\"']")


def lines_of(text: str, description: Description) -> dict[int, int]:
    """Return the line of each resource by its guid; nothing where the text does not tell which is which."""
    starts: dict[int, int] = {}
    if text.lstrip().startswith("<"):
        starts = {int(found[1]): found.start() for found in _XML.finditer(text)}
    else:
        tables = [found.start() for found in _TOML.finditer(text)]
        if len(tables) == len(description.resources):
            starts = {each.guid: at for each, at in zip(description.resources, tables, strict=True)}
    lines: dict[int, int] = {}
    line, before = 1, 0
    for guid, at in sorted(starts.items(), key=lambda each: each[1]):
        line += text.count("\n", before, at)
        lines[guid], before = line, at
    return lines
