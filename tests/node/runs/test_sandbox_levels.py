"""Which level works here, what a Python needs, and the cgroup that holds a job."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec
import pytest

import fedmon
from fedmon.common.errors import InvalidInputError
from fedmon.common.wire.runs import JobState, Level
from fedmon.node.cgroup import JobGroup, kill_in, left_folders
from fedmon.node.runs.confinement import SELF_TEST, Trials
from fedmon.node.runs.folder import LEVELS, TMP, Interpreter, JobOrder, Limits
from fedmon.node.runs.launcher import Launcher
from fedmon.node.runs.sandbox import bubblewrap, landlock
from fedmon.node.runs.sandbox.interpreter import look_at
from tests.node.runs.kept_jobs import plan_of
from tests.support.requirements import require
from tests.support.waiting import wait_until

LIMITS = Limits(cpu_s=10, wall_s=60, memory_bytes=2**30, processes=16, output_bytes=65_536, tmp_bytes=2**20)
NEEDS = "from fedmon.node.runs.sandbox.interpreter import look_at; print(*look_at(None).needs, sep='\\n')"


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    folder, launcher = tmp_path_factory.mktemp("trials"), Launcher(lambda _: None)
    yield Trials(launcher, folder / "trial", folder / "runtime")
    launcher.stop()


def test_the_strongest_level_that_works_is_found_and_why_not_a_stronger_one(trials: Trials) -> None:
    level, reasons = trials.strongest_level(look_at(None), ["/dev/no-such-device"])

    expected = "bubblewrap" if bubblewrap.program() else "landlock" if landlock.abi() else "limits"
    assert expected == level
    assert "bubblewrap" not in reasons or expected != "bubblewrap"
    assert "/dev/no-such-device" in reasons["devices"]


def test_each_level_that_this_machine_has_passes_its_self_test(trials: Trials) -> None:
    interpreter = look_at(None)
    tried: list[Level] = ["limits"]
    if landlock.abi():
        tried.append("landlock")

    assert [trials.problem_with(each, interpreter, ["/dev/no-such-device"]) for each in tried] == [""] * len(tried)


def test_where_no_level_works_each_is_told_with_its_problem(trials: Trials) -> None:
    level, reasons = trials.strongest_level(Interpreter(executable="/no/python", needs=[], path=[]))

    assert (level, list(reasons)) == (None, list(LEVELS))
    assert "No such file" in reasons["limits"]


@pytest.mark.parametrize(
    ("level", "weaker", "problem"),
    [
        ("bubblewrap", None, "capabilities, no_new_privs or seccomp"),
        ("bubblewrap", "limits", "processes of this machine"),
        ("landlock", "limits", "can be read"),
        ("limits", None, "internet socket"),
    ],
)
def test_a_level_that_confines_nothing_does_not_pass(
    trials: Trials, level: Level, weaker: Level | None, problem: str, tmp_path: Path
) -> None:
    # given the plan that a level is tried with, run at a weaker one
    require(landlock.abi(), "this kernel has no Landlock")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    order = JobOrder(
        name="self-test",
        interpreter=look_at(None),
        limits=LIMITS,
        level=weaker,
        arguments={"level": level, "secret": str(secret), "outside": os.getpid()},
    )

    with trials.running(order, SELF_TEST.read_bytes()) as folder:
        folder.wait()
        ending, result = folder.ending(), folder.result.read_bytes()

    assert ending is not None
    assert ending.state is JobState.SUCCEEDED
    assert problem in msgspec.json.decode(result)["problem"]


def test_a_keeper_that_cleans_up_late_takes_nothing_from_the_next_trial(trials: Trials) -> None:
    order = JobOrder(name="waits", interpreter=look_at(None), limits=LIMITS, level="limits")
    with trials.running(order, plan_of("return {}")) as first:
        first.wait()
    with trials.running(order, plan_of("signal.pause()")) as second:
        wait_until(second.started, what="the second plan")
        cgroup = left_folders(second.cgroup)

        first.remove()

        assert (left_folders(second.cgroup), (second.path / TMP).is_dir()) == (cgroup, True)


def test_a_python_needs_neither_the_folder_of_fedmon_nor_whole_trees() -> None:
    found = look_at(None)
    root = Path(fedmon.__file__).resolve().parent.parent
    whole = {"/", "/usr", "/etc", "/root", "/home", "/var", "/tmp", str(Path.home()), str(root), sys.prefix}
    assert set() == whole & set(found.needs)
    assert all(Path(each) != root and root not in Path(each).parents for each in found.path if "lib" not in each)
    assert all(Path(each).exists() for each in (*found.needs, *found.path))
    folders = [each for each in found.needs if Path(each).is_dir() and not Path(each).is_symlink()]
    assert [each for each in found.needs if any(each.startswith(f"{folder}/") for folder in folders)] == []


def test_what_a_path_file_adds_is_not_given_to_plans(tmp_path: Path) -> None:
    private = tmp_path / "developed"
    private.mkdir()
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    packages = next((tmp_path / "env").glob("lib/python3*/site-packages"))
    (packages / "developed.pth").write_text(f"{private}\n")
    found = look_at(python)
    assert str(python) == found.executable
    assert str(packages) in found.path
    assert not any(each.startswith(str(private)) for each in (*found.path, *found.needs))
    assert (
        not any(each.startswith(str(Path(sys.prefix, "lib"))) for each in found.path) or sys.prefix == sys.base_prefix
    )
    assert str(tmp_path / "env" / "pyvenv.cfg") in found.needs


def test_links_to_a_python_are_followed_as_the_kernel_does(tmp_path: Path) -> None:
    for folder in ("bin", "opt/bin", "opt/one"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "current").symlink_to("opt/one")
    python, real = tmp_path / "bin" / "python", tmp_path / "opt" / "bin" / "python"
    python.symlink_to("../current/../bin/python")  # above opt/one, not above current
    real.symlink_to(sys.executable)

    assert {str(python), str(tmp_path / "current"), str(real)} <= set(look_at(python).needs)


@pytest.mark.parametrize("text", [None, "not a program", "#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 3\n"])
def test_what_is_no_python_is_refused_by_name(tmp_path: Path, text: str | None) -> None:
    python = tmp_path / "python"
    if text is not None:
        python.write_text(text)
        python.chmod(0o700)
    with pytest.raises(InvalidInputError, match=str(python)):
        look_at(python)


def test_a_python_that_everybody_could_replace_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    python = folder / "python"
    python.symlink_to(sys.executable)
    assert look_at(python).executable == str(python)
    folder.chmod(0o777)
    with pytest.raises(InvalidInputError, match=rf"{folder}, .*chmod o-w"):
        look_at(python)
    folder.chmod(0o1777)
    assert look_at(python).executable == str(python)


def test_a_cgroup_counts_and_bounds_what_is_started_in_it() -> None:
    group = JobGroup(f"fedmon-test-{os.getpid()}", memory_bytes=64 * 2**20, processes=4)
    try:
        require(group.holds_memory, "this user may make no cgroup that bounds anything")
        script = (
            "import os, sys, time\n"
            "refused = 0\n"
            "for _ in range(6):\n"
            "    try:\n"
            "        if os.fork() == 0: sys.stdin.read(); os._exit(0)\n"
            "    except OSError: refused += 1\n"
            "sum(range(10**6)); print(refused, flush=True); sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", script],
            preexec_fn=group.enter,  # noqa: PLW1509 - the test has no other thread
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == b"3\n"
            assert group.refused_processes() >= 3
            assert (group.cpu_s() or 0) > 0
            assert 0 < (group.peak_memory_bytes() or 0) <= 64 * 2**20
            kill_in(group.folders.values())
        assert group.ended_for_memory() == 0
        eater = [sys.executable, "-I", "-S", "-c", "x = b'x' * 2**28"]
        done = subprocess.run(eater, preexec_fn=group.enter, check=False, capture_output=True)
        assert done.returncode == -9
        assert group.ended_for_memory() == 1
    finally:
        folders = list(group.folders.values())
        group.remove()
        assert not any(folder.exists() for folder in folders)


def test_a_dangling_link_to_a_loader_is_not_needed() -> None:
    require(bubblewrap.program(), "bubblewrap is not installed")
    present = [
        ("--symlink", str(each.readlink()), str(each)) if each.is_symlink() else ("--dev-bind", str(each), str(each))
        for each in Path("/").iterdir()
    ]
    dangling = ("--symlink", "/missing", "/lib-other/ld-gone.so.1")

    words = ["bwrap", *chain(*present, dangling), sys.executable, "-c", NEEDS]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)

    assert [each for each in ran.stdout.splitlines() if "missing" in each or "gone" in each] == []


def test_a_python_below_the_folder_that_the_sandbox_covers_can_be_used(trials: Trials) -> None:
    require(bubblewrap.program(), "bubblewrap is not installed")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = Path(folder, "bin/python")

        level, reasons = trials.strongest_level(look_at(python))

    assert level == "bubblewrap", reasons
