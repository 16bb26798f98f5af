"""Whatever a plan does, its keeper names how it ended, and nothing of it runs on."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.wire.runs import JobState, Level
from fedmon.node.runs.folder import Started, remove_tree
from fedmon.node.runs.sandbox import bubblewrap
from tests.node.runs.kept_jobs import MIB, KeptJobs, kept_jobs, left_of
from tests.support.requirements import require
from tests.support.waiting import wait_until

FOREVER = "while True: signal.pause()"
FRAME = "os.write(6, {kind!r} + ({length}).to_bytes(8, 'big') + {payload!r})"


def frame(kind: bytes, payload: bytes, *, length: int | None = None) -> str:
    return FRAME.format(kind=kind, length=len(payload) if length is None else length, payload=payload)


CASES: dict[str, tuple[str, JobState, str, dict[str, Any]]] = {
    "ends by os._exit": ("os._exit(4)", JobState.FAILED, "with exit code 4, and returned nothing", {}),
    "kills itself": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        JobState.FAILED,
        "by SIGKILL, which this node did not send, and returned nothing",
        {},
    ),
    "writes junk": ("os.write(6, b'XXXX' * 10)\n" + FOREVER, JobState.FAILED, "channel", {}),
    "announces a giant result": (frame(b"n", b"", length=2**60) + "\n" + FOREVER, JobState.OUTPUT_LIMIT, "", {}),
    "sends two results": (frame(b"j", b"{}") + "\nreturn {}", JobState.FAILED, "channel", {}),
    "sends junk for a parcel": (frame(b"n", b"PK junk") + "\nos._exit(0)", JobState.INVALID_RESULT, "", {}),
    "sends half a result": (frame(b"j", b"{}", length=9) + "\nos._exit(0)", JobState.FAILED, "channel", {}),
    "eats memory": (
        "kept = []\nwhile True: kept.append(b'x' * 10_000_000)",
        JobState.MEMORY_LIMIT,
        "more than its limit of 128 MiB of memory",
        {"memory_bytes": 128 * MIB},
    ),
    "eats the disk": (
        """
        file = open(os.path.join(os.environ["TMPDIR"], "a"), "wb", buffering=0)
        while True:
            file.write(b"x" * 1_000_000)
        """,
        JobState.DISK_LIMIT,
        "files",
        {},
    ),
    "writes many files": (
        """
        for number in range(10_000_000):
            with open(os.path.join(os.environ["TMPDIR"], str(number)), "w") as file:
                file.write("x" * 4096)
        """,
        JobState.DISK_LIMIT,
        "files",
        {},
    ),
    "forks without end": (
        "while True:\n    if os.fork() == 0:\n        while True: signal.pause()",
        JobState.PROCESS_LIMIT,
        "processes",
        {"processes": 20},
    ),
    "forks for ever": (
        """
        while True:
            try:
                if os.fork() == 0:
                    os.setsid()
            except OSError:
                pass
        """,
        JobState.WALL_LIMIT,
        "",
        {"wall_s": 2.0, "processes": 100, "memory_bytes": 8192 * MIB},  # each process has some of its own
    ),
    "leaves a daemon": (
        """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    signal.pause()
            os._exit(0)
        return {}
        """,
        JobState.SUCCEEDED,
        "",
        {},
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name == "forks for ever" else ()) for name in CASES]
)
def test_a_plan_that_misbehaves_has_a_named_ending_and_leaves_nothing(name: str) -> None:
    check(name, "landlock")


@pytest.mark.parametrize("name", ["kills itself", "leaves a daemon"])
def test_bubblewrap_changes_nothing_about_how_it_is_called(name: str) -> None:
    require(bubblewrap.program(), "bubblewrap is not installed")
    check(name, "bubblewrap")


@pytest.mark.soak
@pytest.mark.parametrize("level", ["bubblewrap", "limits"])
@pytest.mark.parametrize("name", CASES)
def test_other_levels_end_every_plan_the_same(name: str, level: Level) -> None:
    require(level != "bubblewrap" or bubblewrap.program(), "bubblewrap is not installed")
    check(name, level)


def test_a_job_whose_folder_was_removed_is_ended_for_nobody_could_stop_it() -> None:
    order = kept_jobs().order("removed", wall_s=600.0)
    folder = kept_jobs().launch("time.sleep(600)", order)
    wait_until(lambda: left_of("removed"), what="the plan")

    remove_tree(folder.path)

    wait_until(lambda: not left_of("removed"), what="its end")


@pytest.mark.parametrize(
    ("body", "state", "limits"),
    [
        (CASES["forks without end"][0], JobState.PROCESS_LIMIT, {"processes": 20}),
        (
            "for _ in range(4):\n    if os.fork() == 0:\n        kept = b'x' * 60_000_000\n        signal.pause()\n"
            + FOREVER,
            JobState.MEMORY_LIMIT,
            {"memory_bytes": 128 * MIB},
        ),
        ("return {}", JobState.SUCCEEDED, {}),
    ],
)
def test_without_a_cgroup_the_keeper_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, state: JobState, limits: dict[str, Any]
) -> None:
    # given a launcher on a machine where no cgroup can be made
    require(os.geteuid() == 0, "only root can hide parts of a machine from a process")
    python = tmp_path / "python"
    hidden = """unshare -m sh -c 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"' sh"""
    python.write_text(f'#!/bin/sh\nexec {hidden} {sys.executable} "$@"\n')
    python.chmod(0o700)
    with KeptJobs(tmp_path / "jobs") as jobs:
        monkeypatch.setattr(sys, "executable", str(python))

        ending, folder = jobs.run(body, "counted", **limits)

        (started,) = [each for each, _ in folder.events() if isinstance(each, Started)]
    assert (ending.state, started.cgroup) == (state, None), ending
    assert (ending.usage.peak_memory_bytes or 0) > 4 * MIB
    assert left_of("counted") == []


def cgroups_of(job_id: str) -> list[str]:
    return [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if folder.endswith(job_id)]


def check(name: str, level: Level) -> None:
    body, state, part, limits = CASES[name]
    job_id = uuid.uuid4().hex

    ending, folder = kept_jobs().run(body, job_id, level=level, **limits)

    assert (ending.state, part in ending.reason) == (state, True), (ending, folder.trace("stderr", 0, 2000).text)
    assert left_of(job_id) == []
    wait_until(lambda: not folder.is_alive(), what="the keeper's end")
    wait_until(lambda: not (folder.path / "tmp").exists(), what="the end of what the job wrote")
    wait_until(lambda: not cgroups_of(job_id), what="the end of the job's cgroup")
    has_result = state is JobState.SUCCEEDED
    assert folder.result.exists() == has_result
    assert (ending.result_sha256 is not None) == has_result
