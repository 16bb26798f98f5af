"""What owners see of runs fits into 80 columns, with units, and with the ids and words whole that they need."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedmon.common.clock import utc_now
from fedmon.common.wire.runs import JobReport, JobState, Parcel, RunLimits, Usage
from fedmon.node.runs.folder import TraceWriter
from fedmon.node.runs.register import JobRecord
from fedmon.node.runs.release import HELD
from tests.node.owner.owner_desks import desk_of, made_folder
from tests.node.owner.owner_shell import node, refused, told
from tests.plan.trials import packed

ARRAYS = {"w": np.zeros((4, 2)), "rows": np.array(30, dtype="u4"), "who": np.array(["a", "bc"]), "n": [1, 2.5]}
REASON = "it was not done after 2 s, its limit: ask for more in limits, or have the owner raise [runs] max_wall_s"


@pytest.fixture(scope="module")
def jobs() -> list[JobReport]:
    ended = JobReport(
        job_id="01a1ff05-5e06-75f4-b08b-988633d0d299",  # in the same millisecond as the other
        state=JobState.WALL_LIMIT,
        reason=REASON,
        sha256="a" * 64,
        name="logistic_regression_plan",
        limits=RunLimits(cpu_s=60, memory_bytes=4 * 2**30, processes=64),
        usage=Usage(wall_s=1234.5, cpu_s=0.25, peak_memory_bytes=3 * 2**19, energy_j=0.04),
        created=utc_now(),
        ended=utc_now(),
    )
    going = JobReport(
        job_id="01a1ff05-5e06-766d-b634-aa6c697a5a2b",
        state=JobState.RUNNING,
        sha256="b" * 64,
        name="mean",
        created=utc_now(),
    )
    held = msgspec.structs.replace(
        ended,
        job_id=f"01a1ff05-5e06-{ended.job_id}",  # a researcher chose it so that it ends as another
        state=JobState.HELD,
        reason=f"the owner decides about each result; a text of more than 64 characters: {HELD}",
    )
    return [ended, going, held]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, jobs: list[JobReport]) -> Path:
    made = made_folder(tmp_path_factory.mktemp("owner") / "n")
    for runs in (made / "runs", *(made / "runs" / job.job_id for job in jobs)):
        runs.mkdir(mode=0o700, exist_ok=True)
    _, content = packed(ARRAYS)
    (made / "runs" / jobs[2].job_id / "result").write_bytes(content)
    held = Parcel(format="npz", sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    with desk_of(made) as desk, desk.registers.database.transaction():
        for job in jobs:
            result = held if job.state is JobState.HELD else None
            record = JobRecord(researcher_id="researcher-7b379313", content="c", job=job, result=result)
            desk.registers.jobs.keep(record)
    return made


def test_the_list_of_jobs_fits_and_names_each_so_that_it_is_found(folder: Path, jobs: list[JobReport]) -> None:
    lines = node(folder, "runs", environ={"COLUMNS": "80"}).stdout.splitlines()

    assert max(map(len, lines)) <= 80
    shown = [line.split()[0] for line in lines[2:] if not line.startswith(" ")]
    found = [job.job_id for each in shown for job in jobs if job.job_id.startswith(each)]
    assert sorted(found) == sorted(job.job_id for job in jobs)
    ended = next(number for number, line in enumerate(lines) if "wall-limit" in line)
    job_id, state, _ = lines[ended].split(maxsplit=2)
    assert (jobs[0].job_id.startswith(job_id), state) == (True, "wall-limit")
    assert "researcher-" in lines[ended]
    assert lines[ended + 1].startswith("  it was not done after 2 s, its limit: ")
    assert f"state       wall-limit: {REASON[:30]}" in node(folder, "runs", "show", job_id).stdout


def test_held_results_are_listed_with_all_rules_that_hold_them(folder: Path, jobs: list[JobReport]) -> None:
    shown = node(folder, "results", environ={"COLUMNS": "80"}).stdout

    assert max(map(len, shown.splitlines())) <= 80
    assert f"\n{jobs[2].job_id[:13]}  researcher-" in shown
    assert "  the owner decides about each result; a text of more than 64 characters\n\n" in shown


def test_arrays_have_words_on_the_screen_and_the_names_of_numpy_in_json(folder: Path, jobs: list[JobReport]) -> None:
    shown = node(folder, "results", "show", jobs[2].job_id).stdout
    kinds = {each["place"]: each["kind"] for each in told(folder, "results", "show", jobs[2].job_id)["entries"]}

    for words in ("array of 4 x 2 floats ", "array of one integer ", "array of 2 texts ", "integers and floats "):
        assert f"  {words}" in shown.partition("\n\njob ")[0], "above the rule, which stays on the screen"
    assert kinds == {
        "w": "array 4 x 2 of f8",
        "rows": "array of one of u4",
        "who": "array 2 of U2",
        "n": "integers and floats",
    }


def test_a_job_goes_by_a_beginning_that_only_it_has(folder: Path, jobs: list[JobReport]) -> None:
    same = refused(folder, "runs", "show", "01a1ff05", code=4)

    assert all(job.job_id in same for job in jobs)
    assert "at least 4 characters" in refused(folder, "runs", "show", "01a", code=2)
    assert told(folder, "runs", "show", "01a1ff05-5e06-766")["run"]["job_id"] == jobs[1].job_id


def test_a_job_is_shown_with_units_and_the_end_of_its_output(folder: Path, jobs: list[JobReport]) -> None:
    made, other = (folder / "runs" / job.job_id for job in jobs[:2])
    TraceWriter(made / "stdout", size_bytes=2**20).write(b"whole\n")
    stderr = b"before\n" * 10_000 + b"ValueError: the reason\n"
    TraceWriter(made / "stderr", size_bytes=2**20).write(stderr)
    TraceWriter(other / "stdout", size_bytes=4096).write(b"before\n" * 2_500 + b"the end\n")

    ended = node(folder, "runs", "show", jobs[0].job_id).stdout
    going = node(folder, "runs", "show", jobs[1].job_id).stdout
    raw = told(folder, "runs", "show", jobs[0].job_id)

    assert "limits      cpu 60.0 s, memory 4.0 GiB, processes 64\n" in ended
    assert "took        wall 20 min 34 s, cpu 250.0 ms, peak memory 1.5 MiB, energy 0.04 J\n" in ended
    assert "\nstdout:\nwhole\n" in ended
    assert "\nstderr without its first 52.4 KiB (see files):\n" in ended
    assert ended.endswith("\nbefore\nValueError: the reason\n\n")
    assert raw["output"] == {"stdout": "whole\n", "stderr": stderr[-16_384:].decode()}
    assert raw["output_offset"] == {"stdout": 0, "stderr": len(stderr) - 16_384}
    assert "took        not over yet: " in going
    assert going.endswith("\nbefore\nthe end\n\n"), "of a short trace, of which the middle is not kept"


def test_a_job_is_shown_with_the_last_lines_that_it_logged_whatever_it_reported_since(
    folder: Path, jobs: list[JobReport]
) -> None:
    lines = [f'{{"event":"log","t":1.0,"level":"INFO","message":"line {number}"}}\n' for number in range(30)]
    reports = [f'{{"event":"scalar","t":1.0,"number":{number},"values":{{}}}}\n' for number in range(1_000)]
    (folder / "runs" / jobs[0].job_id / "events.jsonl").write_text("".join([*lines, *reports]))

    logged, none = (told(folder, "runs", "show", job.job_id)["logged"] for job in jobs[:2])

    assert (logged, none) == ([f"INFO line {number}" for number in range(10, 30)], [])
