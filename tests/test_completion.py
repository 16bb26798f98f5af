"""Completion files, read by the shells themselves."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fedmon.completion import offered
from tests.support.requirements import require
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

COMPLETE = """
source {file}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_fedmon
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
TYPED = {
    "fedmon no": {"nodes", "node"},
    "fedmon plan ''": {"check", "request", "status"},
    "fedmon runs s": {"show", "stop"},
    "fedmon node plan a": {"approve"},
    "fedmon ping --no": {"--node"},
    "fedmon node plan approve --sh": {"--sha256"},
    "fedmon job --inter": {"--interval"},
    "fedmon job m": {"merge"},
    "fedmon experiment run --ti": {"--timeout"},
    "fedmon --ver": {"--version"},
    "fedmon run pl": set(),  # a file, as bash finds it
    "fedmon job -- pyt": set(),
    "fedmon watch --node ''": set(),
}


def script(shell: str, folder: Path) -> Path:
    done = fedmon_here("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    (folder / "_fedmon").write_text(done.stdout)
    return folder / "_fedmon"


@pytest.mark.parametrize("typed", TYPED)
def test_bash_offers_the_verbs_and_options_that_can_follow(typed: str, tmp_path: Path) -> None:
    code = COMPLETE.format(file=shlex.quote(str(script("bash", tmp_path))), words=typed)

    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr == ""
    assert set(done.stdout.split()) == TYPED[typed]


def test_every_verb_and_option_is_offered() -> None:
    found = offered()

    assert {"--node", "--timeout", "--json", "-h", "--help"} <= set(found["fedmon ping"])
    assert {"init", "start", "plan", "dataset"} <= set(found["fedmon node"])
    assert "--sampling_freq" not in found["fedmon job"]
    for line, words in found.items():
        verbs = [word for word in words if word[:1] != "-"]
        assert words[: len(verbs)] == verbs
        assert all(f"{line} {verb}" in found for verb in verbs)


def test_a_completion_file_is_a_document_too() -> None:
    done = fedmon_here("completion", "bash", "--json")

    assert json.loads(done.stdout) == {"shell": "bash", "script": fedmon_here("completion", "bash").stdout}


STARTS = {
    "bash": (["bash", "--norc", "-i"], "bind 'set show-all-if-ambiguous on'; source {file}"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D; source {file}"),
}


@pytest.mark.parametrize("shell", STARTS)
def test_tab_in_a_shell_shows_the_candidates_and_fills_in_the_only_one(shell: str, tmp_path: Path) -> None:
    require(shutil.which(shell), f"{shell} is not installed")
    words, setup = STARTS[shell]
    master, slave = pty.openpty()
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(slave)
        shown = ""

        def shows(text: str) -> bool:
            nonlocal shown
            if select.select([master], [], [], 0.2)[0]:
                shown += re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", os.read(master, 65_536).decode(errors="replace"))
            return text in shown

        try:
            for typed, expected in (
                (setup.format(file=shlex.quote(str(script(shell, tmp_path)))) + "; echo rea''dy\n", "ready"),
                ("fedmon plan \t", "request"),
                ("requ\t", "request "),
                ("--descr\t", "--description "),
            ):
                shown = ""
                os.write(master, typed.encode())
                wait_until(lambda expected=expected: shows(expected), what=f"{expected} after {typed!r}: {shown!r}")  # type: ignore[misc]
        finally:
            process.kill()
            os.close(master)
