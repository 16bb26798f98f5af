"""Commands that programs and pages print exist as they are printed: verbs, and options."""

from __future__ import annotations

import re
from functools import cache

from fedmon.completion import offered
from tests.docs.pages import PAGES, ROOT, texts

PRINTED = re.compile(r"(?:^|[`(:$|] ?|(?:&&|with|run) )fedmon ((?:[a-z{|-][\w{}|-]*)(?: [^`;\n]*)?)", re.MULTILINE)
"""A line that begins so, or words after a mark or a colon; prose has "fedmon" elsewhere."""
NO_COMMANDS = {
    "is", "lets", "keeps", "writes", "knows", "itself", "at", "of", "with", "or", "that", "reads", "as", "and", "runs:",
}  # fmt: skip
ONLY_VERBS = {"fedmon plan", "fedmon runs", "fedmon experiment", "fedmon node plan", "fedmon node dataset"}


@cache
def words_of() -> dict[str, list[str]]:
    return offered()


def wrong(command: str) -> str:
    """Return the first word of a command that is no verb or option; empty if all are."""
    known, line = words_of(), "fedmon"
    for word in re.sub(r"[(),]", " ", command.split(" -- ", maxsplit=1)[0]).rstrip(".:").split():
        verbs = [each for each in known[line] if each[:1] != "-"]
        if word in verbs:
            line = f"{line} {word}"
        elif "|" in word and verbs:  # such as check|run
            return next((f"{line} {each}" for each in word.split("|") if each not in verbs), "")
        elif word[:2] == "--":
            if word.partition("=")[0] not in known[line]:
                return f"{line} {word}"
        elif word == "help":
            return ""
        elif line == "fedmon" and word not in ("X", "VERB", "..."):
            return f"{line} {word}"
        elif verbs and line != "fedmon":  # an argument of a group, or prose
            return f"{line} {word}" if line in ONLY_VERBS and word.islower() else ""
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


def commands_in(text: str) -> list[str]:
    """Return the commands in a page: in backticks, and at the start of a line in a block for a shell."""
    blocks = re.findall(r"```(?:sh|bash|shell|console)\n(.*?)```", text, re.DOTALL)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    typed = [line for block in blocks for line in re.findall(r"^(?:\$ |srun )? *fedmon (.+)", block, re.MULTILINE)]
    return typed + [" ".join(words.split()) for words in re.findall(r"`fedmon ([^`]+)`", prose)]


def test_every_command_in_a_page_exists() -> None:
    found = {
        (str(page.relative_to(ROOT)), command)
        for page in PAGES
        for command in commands_in(page.read_text(encoding="utf-8"))
        if page.name != "commands.md"
    }

    assert len(found) > 60
    assert sorted((place, command) for place, command in found if wrong(command)) == []
