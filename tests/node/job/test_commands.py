"""Commands of schedulers that behave, and such that do not."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from fedmon.node.job.commands import CommandError, run
from tests.node.job.machine import program
from tests.support.requirements import require
from tests.support.waiting import has_ended, wait_until


def test_a_command_gets_its_words_as_they_are_and_speaks_english(tmp_path: Path) -> None:
    environ = program(tmp_path, "scontrol", 'printf "%s|" "$@" "$LC_ALL" "$SLURM_CONF"; echo oh >&2')
    environ["SLURM_CONF"] = "/site/slurm.conf"
    output = run(["scontrol", "a b", "$(touch pwned)", "; ls", "*"], 60.0, environ=environ)

    assert output == "a b|$(touch pwned)|; ls|*|C|/site/slurm.conf|"


@pytest.mark.parametrize(
    ("text", "limit_s", "why"),
    [
        (None, 60.0, "scontrol is not installed, or cannot be started: No such file or directory"),
        ("exec >&- 2>&-; sleep 600", 0.3, "scontrol did not end within 0.3 s"),
        ("kill -9 $$", 60.0, "scontrol was ended by signal 9"),
        ("echo yes; echo oh >&2; exit 3", 60.0, "scontrol ended with status 3: oh"),
    ],
)
def test_a_command_that_is_absent_lingers_fails_or_is_killed_is_an_error(
    tmp_path: Path, text: str | None, limit_s: float, why: str
) -> None:
    environ = {"PATH": str(tmp_path)} if text is None else program(tmp_path, "scontrol", text)

    with pytest.raises(CommandError, match=re.escape(why)):
        run(["scontrol"], limit_s, environ=environ)


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    children = tmp_path / "children"
    text = f"sleep 600 & echo $! >> {children}; echo $$ >> {children}; wait"
    environ = program(tmp_path, "scontrol", text)
    pids: list[int] = []
    for limit_s in (0.3, 3.0, 30.0):
        with pytest.raises(CommandError, match="scontrol did not end within"):
            run(["scontrol", "listpids", "7"], limit_s, environ=environ)
        pids += [int(line) for line in children.read_text().split()] if children.exists() else []
        if len(pids) >= 2:  # it came as far as its child
            break

    assert len(pids) >= 2
    wait_until(lambda: all(map(has_ended, pids)), what="the end of all that it started")


HOLD = """
import ctypes, os, signal
scontrol = os.getppid()
os.setsid()
if ctypes.CDLL(None).ptrace(16, scontrol, 0, 0) == 0:  # PTRACE_ATTACH: a killed tracee waits for its tracer
    print(os.getpid(), flush=True)
signal.sigtimedwait([signal.SIGUSR2], 30)
"""


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_command_that_cannot_be_killed_is_left_alone(tmp_path: Path) -> None:
    require(os.geteuid() == 0, "another process can be held by root alone")
    holder = tmp_path / "holder"
    environ = program(tmp_path / "bin", "scontrol", f"'{sys.executable}' -c '{HOLD}' > '{holder}' & sleep 600")
    for limit_s in (2.0, 10.0):
        begin = time.monotonic()
        with pytest.raises(CommandError, match="scontrol did not end within"):
            run(["scontrol"], limit_s, environ=environ)
        took_s = time.monotonic() - begin
        if holder.exists() and holder.read_text():  # it was held in time
            break

    require(holder.exists() and holder.read_text(), "another process cannot be held here")
    os.kill(int(holder.read_text()), signal.SIGKILL)
    assert took_s < limit_s + 10


def test_who_ends_but_leaves_a_child_with_its_output_is_not_waited_for(tmp_path: Path) -> None:
    environ = program(tmp_path, "scontrol", "sleep 600 & echo $!; exit 0")
    begin = time.monotonic()
    output = run(["scontrol"], 30.0, environ=environ)

    assert time.monotonic() - begin < 10
    os.kill(int(output), signal.SIGKILL)


def test_what_it_says_is_told_without_hidden_characters_and_in_bounds(tmp_path: Path) -> None:
    environ = program(tmp_path, "scontrol", "printf '\\033[2Jgone\\377'; printf 'x%.0s' $(seq 900) >&2; exit 1")
    with pytest.raises(CommandError) as caught:
        run(["scontrol"], 60.0, environ=environ)

    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()
