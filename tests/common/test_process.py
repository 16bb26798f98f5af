"""A child process: signalled, waited for, and never left behind."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from fedmon.common.process import ChildProcess
from tests.support.waiting import wait_until

READY = "import signal, sys, time; print('ready', flush=True); signal.pause()"


def python(code: str, folder: Path, **limits: int) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", code], folder=folder, output=folder / "log", **limits)


def test_a_child_gets_the_signals_that_are_sent_and_more_open_files(tmp_path: Path) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True);" + READY
    child = python(code, tmp_path, open_files=2000)
    wait_until(lambda: "ready" in (tmp_path / "log").read_text())

    assert child.wait(0.0) is None
    child.send(signal.SIGINT)

    assert child.wait(60) not in (None, 0)
    assert int((tmp_path / "log").read_text().split()[0]) >= 2000
    assert "KeyboardInterrupt" in (tmp_path / "log").read_text()
    child.end(timeout_s=1.0)


def test_a_command_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        ChildProcess(["no-such-program"], folder=tmp_path, output=tmp_path / "log")


def test_a_child_that_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    child = python("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + READY, tmp_path)
    wait_until(lambda: "ready" in (tmp_path / "log").read_text())

    child.end(timeout_s=0.1)

    assert child.wait() == 128 + signal.SIGKILL
    assert not psutil.pid_exists(child.pid)
