"""Commands that programs and pages print exist as they are printed: verbs, and options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fedmon.completion import offered

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "broker/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRINTED = re.compile(r"(?:^|[`(:$|] ?|(?:&&|with|run) )fedmon ((?:[a-z{|-][\w{}|-]*)(?: [^`;\n]*)?)", re.MULTILINE)
"""A line that begins so, or words after a mark or a colon; prose has "fedmon" elsewhere."""
NO_COMMANDS = {
    "is",
    "lets",
    "keeps",
    "writes",
    "knows",
    "itself",
    "at",
    "of",
    "with",
    "or",
    "that",
    "reads",
    "as",
    "and",
    "runs:",
}


def texts(path: Path) -> Iterator[str]:
    """Yield the texts in a file of Python, what is filled in as X."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def words_of() -> dict[str, list[str]]:
    return offered()


def wrong(command: str) -> str:
    """Return the first word of a command that is no verb or option; empty if all are."""
    known, line = words_of(), "fedmon"
    words = (
        command.split(" -- ", maxsplit=1)[0].replace("(", " ").replace(")", " ").replace(",", " ").rstrip(".:").split()
    )
    for word in words:
        if "|" in word and word[0] != "-":  # such as check|run
            return next((f"{line} {each}" for each in word.split("|") if f"{line} {each}" not in known), "")
        if f"{line} {word}" in known:
            line = f"{line} {word}"
        elif word[:2] == "--" and word not in ("--", "--debug"):
            if word.partition("=")[0] not in known[line]:
                return f"{line} {word}"
        elif line == "fedmon" and word not in ("help", "--debug", "X", "VERB", "..."):
            return f"{line} {word}"
        elif line != "fedmon" and word[:1] != "-" and f"{line} {word}" not in known:
            verbs = [each for each in known[line] if each[:1] != "-"]
            if (
                verbs
                and line not in ("fedmon nodes", "fedmon runs", "fedmon job", "fedmon node")
                and re.fullmatch(r"[a-z-]+", word)
            ):
                return f"{line} {word}"
            if not verbs:
                continue
            break
    return ""


def test_every_command_that_fedmon_prints_exists() -> None:
    found = {
        (str(path.relative_to(ROOT)), command)
        for path in (ROOT / "fedmon").rglob("*.py")
        for text in texts(path)
        for command in PRINTED.findall(text)
        if command.split()[0] not in NO_COMMANDS
    }

    assert len(found) > 60
    assert sorted((place, command) for place, command in found if wrong(command)) == []


def test_every_command_in_a_page_exists() -> None:
    found = {
        (str(page.relative_to(ROOT)), command)
        for page in PAGES
        for command in re.findall(
            r"(?:`|^ *\$? ?|srun )fedmon ([^`\n]+)", page.read_text(encoding="utf-8"), re.MULTILINE
        )
        if command.split()[0] not in NO_COMMANDS and page.name != "commands.md"
    }

    assert len(found) > 60
    assert sorted((place, command) for place, command in found if wrong(command)) == []
