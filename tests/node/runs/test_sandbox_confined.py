"""What a job's first process is given, and what it is not started with."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from fedmon.common.errors import ConflictError, StorageError
from fedmon.common.wire.runs import Level
from fedmon.node.runs.folder import GivenDataset
from fedmon.node.runs.sandbox import bubblewrap, kernel, landlock, process
from tests.node.runs.sandboxes import LIMITS, PROBES, Machine, launcher_environment, machine, python_for
from tests.support.requirements import require

PROGRAM = Path(__file__).with_name("programs") / "telling.py"
HAS_BUBBLEWRAP = bubblewrap.program() is not None


@pytest.fixture
def target() -> Iterator[Machine]:
    with machine() as made:
        made.lay(PROGRAM)
        yield made


def _told(target: Machine, level: Level, question: dict[str, Any], **changes: Any) -> dict[str, Any]:
    ended = target.run(target.order(level, **changes), question)
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_a_plan_gets_five_words_of_environment_and_its_limits(target: Machine, level: Level) -> None:
    require(HAS_BUBBLEWRAP if level == "bubblewrap" else landlock.abi(), f"{level} does not work here")
    told = _told(target, level, {})
    words = told["environ"]
    home = "/tmp" if level == "bubblewrap" else str(target.job / "tmp")
    program = str(Path(python_for(os.geteuid())).parent)
    expected = {"PATH": program, "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home, "FEDMON_JOB_ID": "probe"}
    assert expected == {name: text for name, text in words.items() if name not in ("PWD", "LC_CTYPE")}
    assert home == told["cwd"]
    assert told["flags"] == 2
    extra = 2 if level == "bubblewrap" else 0
    assert told["limits"] == {
        "RLIMIT_CPU": [31, 31],
        "RLIMIT_CORE": [0, 0],
        "RLIMIT_NPROC": [LIMITS.processes + extra] * 2,
        "RLIMIT_FSIZE": [LIMITS.tmp_bytes] * 2,
        "RLIMIT_DATA": [LIMITS.memory_bytes] * 2,
    }


def test_in_bubblewrap_a_plan_is_nobody_with_nothing_but_what_it_needs(target: Machine) -> None:
    require(HAS_BUBBLEWRAP, "bubblewrap is not installed")
    told = _told(target, "bubblewrap", {"root": True})
    assert told["ids"][:2] == [65534, 65534]
    assert told["host"] == "sandbox"
    needed = {Path(each).parts[1] for each in target.order("bubblewrap").interpreter.needs}
    assert {"data", "dev", "proc", "runtime", "tmp", *needed} == set(told["root"])
    inside, outside, count = told["uid_map"]
    assert (inside, count) == ("65534", "1")
    if os.geteuid() == 0:
        assert int(outside) >= 1_879_048_192, "root's jobs run as a user who owns nothing"


def test_root_gives_a_plan_private_data_of_any_owner_and_only_that(target: Machine) -> None:
    require(HAS_BUBBLEWRAP and os.geteuid() == 0, "only root reads what belongs to others")
    closed = target.folder / "closed"
    closed.mkdir()
    private = closed / "private.csv"
    private.write_text("private")
    os.chown(private, 12345, 54321)
    private.chmod(0o400)
    closed.chmod(0o700)
    given = GivenDataset(dataset_id="p", name="p", data_type="csv", path=str(private))
    told = _told(target, "bubblewrap", {"read": ["/data/private.csv", str(private)]}, dataset=given)
    assert told["read"] == ["private", None]
    assert (private.stat().st_uid, private.stat().st_mode & 0o777) == (12345, 0o400)


def test_data_on_a_file_system_that_knows_no_other_owner_is_still_given(target: Machine) -> None:
    require(HAS_BUBBLEWRAP and os.geteuid() == 0, "only root shows files under another owner")
    given = GivenDataset(dataset_id="k", name="k", data_type="folder", path="/proc/sys/kernel")
    told = _told(target, "bubblewrap", {"read": ["/data/kernel/ostype"]}, dataset=given)
    assert told["read"] == ["Linux\n"]
    assert told["ids"][:2] == [65534, 65534]
    assert told["uid_map"][1] == "0"
    target.lay(PROBES)
    tried = ["kernel_settings", "modes_of_a_device", "modes_of_standard_input", "weaker_randomness"]
    done = json.loads(target.run(target.order("bubblewrap", dataset=given), {"probes": tried, "facts": {}}).stdout)
    assert done == dict.fromkeys(tried, "")


def test_a_machine_that_allows_no_user_namespace_is_told_as_such() -> None:
    require(os.geteuid() == 0, "only root may set such a limit")
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    ask = "from fedmon.node.runs.sandbox import bubblewrap; bubblewrap.own_namespace(0, 0)"
    words = ["unshare", "-Ur", "sh", "-c", forbid, "sh", python_for(0), "-c", ask]

    done = subprocess.run(words, env=launcher_environment(), capture_output=True, text=True)

    assert done.stderr.splitlines()[-1].startswith("OSError: [Errno 28] no user namespace: ")


def test_a_machine_that_kills_who_asks_for_a_user_namespace_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "unshare", lambda _flags: os.kill(os.getpid(), signal.SIGKILL))

    with pytest.raises(OSError, match="no user namespace: Operation not permitted"):
        bubblewrap.own_namespace(os.geteuid(), os.getegid())


def test_without_a_dataset_there_is_no_data(target: Machine) -> None:
    require(HAS_BUBBLEWRAP, "bubblewrap is not installed")
    told = _told(target, "bubblewrap", {"root": True}, dataset=None)
    assert "data" not in told["root"]
    assert bubblewrap.data_path(target.order("bubblewrap", dataset=None)) is None


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_a_dataset_with_a_way_out_is_not_given(target: Machine, kind: str) -> None:
    way_out = target.given / "deep" / "way-out"
    way_out.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "socket":
            listener.bind(str(way_out))
        else:
            os.mkfifo(way_out)
        with pytest.raises(ConflictError, match=str(way_out)):
            process.start(target.order("bubblewrap"), {})


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_a_dataset_that_became_a_link_after_it_was_looked_at_is_not_given(target: Machine, level: Level) -> None:
    link = target.folder / "table.csv"
    link.symlink_to(target.secret)
    given = GivenDataset(dataset_id="l", name="l", data_type="csv", path=str(link))

    with pytest.raises(ConflictError, match="through a link"):
        process.start(target.order(level, dataset=given), {})


def test_a_dataset_that_vanished_is_named(target: Machine) -> None:
    gone = GivenDataset(dataset_id="g", name="g", data_type="csv", path=str(target.folder / "gone.csv"))
    with pytest.raises(StorageError, match=r"gone\.csv"):
        process.start(target.order("bubblewrap", dataset=gone), {})


@pytest.mark.parametrize("level", ["bubblewrap", "landlock", "limits"])
def test_an_interpreter_that_would_show_the_nodes_folder_is_refused(target: Machine, level: Level) -> None:
    order = target.order(level)
    showing = msgspec.structs.replace(order.interpreter, needs=[*order.interpreter.needs, str(target.node)])
    with pytest.raises(ConflictError, match="own files"):
        process.start(msgspec.structs.replace(order, interpreter=showing), {})


def test_a_program_that_cannot_be_started_is_told_with_its_cause(target: Machine) -> None:
    order = target.order("limits")
    gone = msgspec.structs.replace(order.interpreter, executable=str(target.folder / "no-python"))
    with pytest.raises(StorageError, match="No such file"):
        process.start(msgspec.structs.replace(order, interpreter=gone), {0: 0})


def test_a_program_that_does_not_come_to_be_is_not_waited_for_without_end(target: Machine) -> None:
    others = set(psutil.Process().children())
    with pytest.raises(StorageError, match=r"not ready after 0\.1 s"):
        process.start(target.order("limits"), {0: 0}, first=signal.pause, timeout_s=0.1)
    (child,) = set(psutil.Process().children()) - others
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == -signal.SIGKILL
