"""What is read without the library that explains the verb is what that library reads."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from fedmon.node.job.cli import app
from fedmon.node.job.options import JobOptions
from fedmon.node.job.start import FLAGS, FORMATS, ONE, PIDS, asked, read

TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=5)
WORDS = st.one_of(TEXT, st.sampled_from(["1", "0.5", "1e1", "csv", "orc", "nan", "--", "-", "merge", "--help", "-rv"]))
OPTIONS = st.sampled_from([*ONE, *FLAGS, *FORMATS, PIDS])
VALUES = st.sampled_from(["2", "0.5", "csv", "orc"])


def read_by_typer(words: list[str]) -> dict[str, Any]:
    context = get_command(app).make_context("fedmon job", list(words))
    return {**context.params, "command": context.meta["fedmon.job.command"]}


def comparable(given: dict[str, Any]) -> dict[str, str]:
    """Return what was given as text, since no number is like the one that is none."""
    return {
        name: str(tuple(value) if isinstance(value, list) else value) for name, value in given.items() if value
    }  # fmt: skip


def test_every_option_of_the_verb_can_be_plain() -> None:
    options = {
        text: parameter.name
        for parameter in get_command(app).params
        for text in (*parameter.opts, *parameter.secondary_opts)
        if parameter.name != "help"
    }

    plain = {text: name for text, (name, _) in ONE.items()} | FLAGS
    assert options == plain | dict.fromkeys(FORMATS, "export") | {PIDS: "pids"}


@given(st.lists(st.one_of(WORDS, st.tuples(OPTIONS, VALUES)), max_size=6))
def test_what_is_plain_is_read_alike_and_all_else_is_left(parts: list[str | tuple[str, str]]) -> None:
    words = [word for part in parts for word in ((part,) if isinstance(part, str) else part)]
    found = read(words)

    if found is not None:
        defaults = {"launcher": "auto", "sampling_freq": 30.0, "check_point": 900.0}
        assert comparable(read_by_typer(words)) == comparable(defaults | found)


def test_plain_words_are_read(tmp_path: Any) -> None:
    words = ["-d", str(tmp_path), "-i", "0.5", "-e", "csv", "orc", "--name", "a run", "-r", "--", "true", "-v"]
    given = read(words)

    assert given is not None
    assert asked(given) == JobOptions(
        save_dir=tmp_path,
        sampling_freq=0.5,
        export=("csv", "orc"),
        labels={"name": "a run"},
        gen_report=True,
        command=("true", "-v"),
    )


@pytest.mark.parametrize("words", [["-d"], ["-i", "x"], ["-i=1"], ["--pid", "-1"], ["--"], ["-e"], ["merge", "x"]])
def test_what_is_not_plain_is_left_to_who_can_explain_it(words: list[str]) -> None:
    assert read(words) is None


def test_a_run_loads_nothing_that_only_explains() -> None:
    heavy = {"typer", "click", "rich", "hashlib", "tomllib", "asyncio", "fedmon.report", "psutil"}
    code = (
        "import sys\nimport fedmon.cli\nfrom fedmon.node.job import start, tool, wrapper\n"
        f"start.asked(start.read(['--', 'true']))\nprint(sorted({heavy!r} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
