"""Pages, help, messages and docstrings are plain English: short sentences, and none of the phrases below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, texts

GENERATED = {"commands.md", "settings.md", "metrics.md", "experiment-files.md"}
WRITTEN = [page for page in PAGES if page.name not in GENERATED]
SOURCES = [*sorted((ROOT / "fedmon").rglob("*.py")), *sorted((ROOT / "bench").glob("*.py"))]
MOST_WORDS, MEAN_WORDS, MOST_LINES = 30, 18, 300
BANNED = {
    r"\bin vain\b": "say which attempt failed",
    r"\b(?:for|no) want of\b": "say what is missing",
    r"\bof (?:its|their|his|her|my|our|your|one's) own\b": "own, separate, dedicated",
    r"\b(?:no|some|every|any)body\b": "no node, a process, all researchers, anyone",
    r"\bany more\b|\b(?:is|are|was|were) no more\b": "no longer",
    r"\bthat which\b": "the noun",
    r"\bwhat\b(?! to\b)(?![^.;]*\?)": "the noun: the result, the data, the job",
    r"\bwhoever\b|\b(?:of|for|by|from|with) who\b": "anyone who, the user",
    r"\bso many\b": "the number",
    r"\bthere (?:is|are) no\b[^.;:,]{0,40} here\b": "X not found",
    r"\b(?:he|his|him|himself|she|hers|her)\b": "they, their",
}


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page, without code blocks, tables and headings; a list of names is one word."""
    text = re.sub(r"^```.*?^```[^\n]*$", "\n", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(?:\||#+ ).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]+`(?:(?:,\s| and\s|, and\s| or\s)`[^`]+`)*", "NAME", text)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.replace("**", "").split())
        yield from re.split(r"""(?<=[.!?])["')]?\s+(?=["'(]?(?:[A-Z0-9]|fedmon\b|mosquitto\b))""", plain)


def words(sentence: str) -> int:
    """Count the words of a sentence."""
    return len(re.findall(r"\w[\w.'/+-]*", sentence))


def phrases(text: str) -> list[str]:
    """Return the banned phrases of a text, each with the words after it; code in backticks does not count."""
    plain = " ".join(re.sub(r"(`+)[^`]+\1", "NAME", text).split())
    return [
        f"{plain[found.start() : found.start() + 60]!r}: {instead}"
        for pattern, instead in BANNED.items()
        for found in re.finditer(pattern, plain, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_sentences_of_a_page_are_short(page: Path) -> None:
    counts = {sentence: words(sentence) for sentence in sentences(page) if words(sentence)}

    assert [sentence for sentence, count in counts.items() if count > MOST_WORDS] == []
    assert sum(counts.values()) <= MEAN_WORDS * len(counts)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= (130 if page == ROOT / "README.md" else MOST_LINES)


def test_no_page_has_a_banned_phrase() -> None:
    code = re.compile(r"^```.*?^```[^\n]*$", re.MULTILINE | re.DOTALL)
    found = {str(page.relative_to(ROOT)): phrases(code.sub("", page.read_text())) for page in PAGES}

    assert {page: said for page, said in found.items() if said} == {}


def test_no_help_message_or_docstring_has_a_banned_phrase() -> None:
    found = {
        str(source.relative_to(ROOT)): [said for text in texts(source) if " " in text.strip() for said in phrases(text)]
        for source in SOURCES
    }

    assert {source: said for source, said in found.items() if said} == {}
