"""Reads the plain words of `fedmon job`, without the library that explains and refuses.

That one takes longer to load than everything else that a job waits for. Whatever is not plain, such as a word that
holds option and value, a value that begins with a dash, a mistake, or a call for help, is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ONE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "-d": ("save_dir", Path),
    "--save_dir": ("save_dir", Path),
    "-p": ("prefix", str),
    "--prefix": ("prefix", str),
    "-l": ("launcher", str),
    "--launcher": ("launcher", str),
    "-i": ("sampling_freq", float),
    "--sampling_freq": ("sampling_freq", float),
    "-c": ("check_point", float),
    "--check_point": ("check_point", float),
    "--system": ("system", str),
    "--partition": ("partition", str),
    "--env": ("env", str),
    "--name": ("name", str),
    "--broker": ("broker", str),
}
"""Options with one value: the last one counts."""
FLAGS = {"-r": "gen_report", "--gen_report": "gen_report", "-v": "verbose", "--verbose": "verbose"}
PIDS = "--pid"
FORMATS = ("-e", "--export")


def read(words: Sequence[str]) -> dict[str, Any] | None:
    """Return the options that are given, by name, with the words after ``--`` as ``command``; None if not plain."""
    words, command = list(words), []
    if "--" in words:
        place = words.index("--")
        words, command = words[:place], words[place + 1 :]
        if not command:
            return None
    found: dict[str, Any] = {"command": tuple(command)}
    words.reverse()
    try:
        while words:
            _take(words, found)
    except (ValueError, IndexError):
        return None
    return found


def _take(words: list[str], found: dict[str, Any]) -> None:
    """Take one option from the end of ``words``. Raises ValueError and IndexError where it is not plain."""
    word = words.pop()
    if word in FLAGS:
        found[FLAGS[word]] = True
    elif word in ONE:
        name, kind = ONE[word]
        found[name] = kind(_value(words))
    elif word == PIDS:
        found.setdefault("pids", []).append(int(_value(words)))
    elif word in FORMATS:
        formats = found.setdefault("export", [])
        formats.append(_value(words))
        while words and not words[-1].startswith("-"):
            formats.append(words.pop())
    else:
        raise ValueError(word)


def _value(words: list[str]) -> str:
    if words[-1].startswith("-"):
        raise ValueError(words[-1])
    return words.pop()
