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
from fedmon.common.ids import new_id
from fedmon.common.wire.runs import JobState, Level
from fedmon.node.runs.folder import GivenDataset, JobOrder
from fedmon.node.runs.sandbox import bubblewrap, kernel, landlock, process
from tests.node.runs.kept_jobs import kept_jobs
from tests.node.runs.sandboxes import Machine, launcher_environment, machine, python_for
from tests.support.requirements import require

HAS_BUBBLEWRAP = bubblewrap.program() is not None
TELLS = """
import resource

def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None

return {
    "read": [read(path) for path in context.arguments.get("read", [])],
    "environ": dict(os.environ),
    "cwd": os.getcwd(),
    "ids": [os.getuid(), os.getgid()],
    "host": os.uname().nodename,
    "root": os.listdir("/") if context.arguments.get("root") else [],
    "limits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in context.arguments["limits"]},
    "uid_map": (read("/proc/self/uid_map") or "").split(),
    "flags": sys.flags.isolated + sys.flags.no_site,
}
"""
"""A plan that tells what it sees of itself."""


@pytest.fixture
def target() -> Iterator[Machine]:
    with machine() as made:
        yield made


def _told(order: JobOrder, **arguments: Any) -> dict[str, Any]:
    arguments = {"limits": [], **arguments}
    folder = kept_jobs().launch(TELLS, msgspec.structs.replace(order, arguments=arguments))
    ending = kept_jobs().ending(folder)
    assert ending.state is JobState.SUCCEEDED, ending
    told: dict[str, Any] = json.loads(folder.result.read_bytes())
    return told


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_a_plan_gets_five_words_of_environment_and_its_limits(level: Level) -> None:
    require(HAS_BUBBLEWRAP if level == "bubblewrap" else landlock.abi(), f"{level} does not work here")
    order = kept_jobs().order(new_id(), level=level)
    limits = order.limits
    told = _told(order, limits=["CPU", "CORE", "NPROC", "FSIZE", "DATA"])
    words = told["environ"]
    home = "/tmp" if level == "bubblewrap" else f"{order.folder}/tmp"
    program = str(Path(order.interpreter.executable).parent)
    expected = {"PATH": program, "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home, "FEDMON_JOB_ID": order.job_id}
    assert expected == {name: text for name, text in words.items() if name not in ("PWD", "LC_CTYPE")}
    assert home == told["cwd"]
    assert told["flags"] == 2
    assert told["limits"] == {
        "CPU": [limits.cpu_s + 1] * 2,
        "CORE": [0, 0],
        "NPROC": [limits.processes + (2 if level == "bubblewrap" else 0)] * 2,
        "FSIZE": [limits.tmp_bytes] * 2,
        "DATA": [limits.memory_bytes] * 2,
    }


def test_in_bubblewrap_a_plan_is_nobody_with_nothing_but_what_it_needs() -> None:
    require(HAS_BUBBLEWRAP, "bubblewrap is not installed")
    order = kept_jobs().order(new_id(), level="bubblewrap")
    told = _told(order, root=True)
    assert told["ids"] == [65534, 65534]
    assert told["host"] == "sandbox"
    needed = {Path(each).parts[1] for each in order.interpreter.needs}
    assert {"dev", "proc", "runtime", "tmp", *needed} == set(told["root"])
    assert bubblewrap.data_path(order) is None
    inside, outside, count = told["uid_map"]
    assert (inside, count) == ("65534", "1")
    if os.geteuid() == 0:
        assert int(outside) >= 1_879_048_192, "root's jobs run as a user who owns nothing"


def test_root_gives_a_plan_private_data_of_any_owner_and_only_that(tmp_path: Path) -> None:
    require(HAS_BUBBLEWRAP and os.geteuid() == 0, "only root reads what belongs to others")
    closed = tmp_path / "closed"
    closed.mkdir()
    private = closed / "private.csv"
    private.write_text("private")
    os.chown(private, 12345, 54321)
    private.chmod(0o400)
    closed.chmod(0o700)
    given = GivenDataset(dataset_id="p", name="p", data_type="csv", path=str(private))
    order = kept_jobs().order(new_id(), level="bubblewrap", dataset=given)
    told = _told(order, read=["/data/private.csv", str(private)], root=True)
    assert "data" in told["root"]
    assert told["read"] == ["private", None]
    assert (private.stat().st_uid, private.stat().st_mode & 0o777) == (12345, 0o400)


def test_data_on_a_file_system_that_knows_no_other_owner_is_still_given(target: Machine) -> None:
    require(HAS_BUBBLEWRAP and os.geteuid() == 0, "only root shows files under another owner")
    given = GivenDataset(dataset_id="k", name="k", data_type="folder", path="/proc/sys/kernel")
    told = _told(kept_jobs().order(new_id(), level="bubblewrap", dataset=given), read=["/data/kernel/ostype"])
    assert told["read"] == ["Linux\n"]
    assert told["ids"] == [65534, 65534]
    assert told["uid_map"][1] == "0"
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
