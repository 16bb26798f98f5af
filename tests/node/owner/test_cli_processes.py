"""Verbs of the owner as processes: each says and returns what it does inside the process of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.owner.owner_desks import asked, made_folder
from tests.support.node_process import fedmon
from tests.support.shell_here import fedmon_here

VERBS = [
    ("status", 0),
    ("released --json", 0),
    ("runs show none --json", 3),
    ("results list", 0),
    ("config show broker.port", 2),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = made_folder(tmp_path_factory.mktemp("owner") / "n")
    asked(made)
    return made


@pytest.mark.parametrize(("words", "code"), VERBS)
def test_a_verb_as_a_process_ends_with_its_code_and_says_the_same(folder: Path, words: str, code: int) -> None:
    verb = ("node", *words.split(), "--dir", str(folder))

    process, here = fedmon(*verb), fedmon_here(*verb)

    assert process.returncode == code, process.stdout + process.stderr
    assert (process.returncode, process.stdout, process.stderr) == (here.returncode, here.stdout, here.stderr)
    assert process.stdout or process.stderr.startswith("fedmon: ")
