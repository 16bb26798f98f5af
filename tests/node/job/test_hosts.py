"""Many hosts, one folder: exactly one of them merges, also if hosts die, come late or never, or clocks are wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import StorageError
from fedmon.common.store.recording import Recording
from fedmon.node.job.hosts import BEAT_S, SILENT_BEATS, Membership
from fedmon.node.job.layout import JobFolder
from fedmon.node.job.merge import merge
from tests.common.store.recordings import flat
from tests.support.waiting import wait_until

Said = dict[str, dict[str, Any]]


class Job:
    """A job in a folder of a test."""

    def __init__(self, save_dir: Path, key: str = "4711") -> None:
        self.save_dir, self.folder = save_dir, JobFolder(save_dir, None, key)

    def start(self, *hosts: dict[str, Any]) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name("host_child.py")), str(self.save_dir), self.folder.key]
        return subprocess.Popen(
            [*command, json.dumps(hosts)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )

    def run(self, *hosts: dict[str, Any]) -> Said:
        """Run hosts that begin together; returns what those said that lived to their end."""
        return self.said(self.start(*hosts))

    def said(self, process: subprocess.Popen[str]) -> Said:
        output, _ = process.communicate(timeout=60.0)
        return {line["host"]: line for line in map(json.loads, output.splitlines())}

    def samples(self) -> Counter[str]:
        """Return how many samples of each node were merged, after a look that none came twice."""
        with Recording(self.folder.merged, read_only=True) as recording:
            found = [one[:4] for one in flat(recording.read())]
        assert len(found) == len({*found})
        return Counter(node_id for node_id, *_ in found)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def merges(*said: Said) -> int:
    return sum(host["merges"] for each in said for host in each.values())


def test_of_eight_hosts_that_end_together_exactly_one_merges_every_sample_once(tmp_path: Path) -> None:
    jobs = [Job(tmp_path, str(number)) for number in range(2)]
    started = [job.start(*({"host": f"n{n}", "expected": 8} for n in range(8))) for job in jobs]
    for job, process in zip(jobs, started, strict=True):
        said = job.said(process)
        assert (len(said), merges(said)) == (8, 1)
        assert dict.fromkeys((host["node_id"] for host in said.values()), 10) == job.samples()


def test_hosts_of_one_name_share_no_file_and_no_id(job: Job) -> None:
    said = job.run(*({"host": "localhost"} for _ in range(4)))
    assert {"localhost", "localhost-2", "localhost-3", "localhost-4"} == set(said)
    assert merges(said) == 1
    assert list(job.samples().values()) == [10] * 4


@pytest.mark.parametrize("far", [{}, {"machine": "elsewhere"}], ids=["here", "elsewhere"])
def test_a_host_that_was_killed_costs_no_other_its_merge(job: Job, far: dict[str, Any]) -> None:
    said = job.run({"host": "a"}, {"host": "b"}, {"host": "dead", "killed": True, "samples": 20, **far})
    assert (set(said), merges(said)) == ({"a", "b"}, 1)
    assert sorted(job.samples().values()) == [10, 10, 20]


def test_a_host_that_ends_long_after_the_others_merges_and_they_do_not_wait_for_it(job: Job, tmp_path: Path) -> None:
    # A busy machine can be silent for longer than four beats of the shortest kind.
    quick = {"host": "a", "waits_for": str(tmp_path / "first"), "beat_s": 1.0}
    late = {"host": "late", "waits_for": str(tmp_path / "go"), "beat_s": 1.0, "machine": "elsewhere"}
    process = job.start(quick, late)
    assert process.stdout is not None
    wait_until(lambda: list(job.folder.hosts.glob("*-late.*")), what="the late host to begin")
    (tmp_path / "first").touch()
    wait_until(lambda: list(job.folder.hosts.glob("*-a.1.end")), what="the end of the quick host")
    first = json.loads(process.stdout.readline())  # it is done, while the late one still runs
    (tmp_path / "go").touch()
    said = {first["host"]: first} | job.said(process)
    assert {name: host["merges"] for name, host in said.items()} == {"a": 0, "late": 1}
    assert sum(job.samples().values()) == 20


def test_a_host_that_was_taken_for_dead_and_ends_after_all_has_everything_merged_again(job: Job) -> None:
    # On another machine, it beats too seldom for the others.
    with Membership(job.folder, host="slow", beat_s=100.0, machine="elsewhere") as slow:
        slow.begin()
        said = job.run({"host": "a"})
        assert merges(said) == 1
        with Recording(slow.recording) as recording:
            recording.append([])
        assert slow.end() is True
        merge(job.folder)
        assert slow.done() is False


def test_hosts_that_never_come_are_not_waited_for_for_ever_and_one_merges(job: Job) -> None:
    said = job.run(*({"host": name, "expected": 9, "beat_s": 0.2} for name in "abc"))
    assert merges(said) == 1
    assert max(host["decided_s"] for host in said.values()) < 30.0
    assert sum(job.samples().values()) == 30


def test_the_last_host_of_thousands_looks_at_the_others_with_little_work(job: Job) -> None:
    job.folder.make()
    for number in range(3000):
        (job.folder.hosts / f"job-4711-n{number}.1.begin").write_text('{"boot": 1}')
    with Membership(job.folder, host="last", beat_s=0.1) as last:
        last.begin()
        began = time.process_time()

        assert last.end() is True
        assert time.process_time() - began < 3.0


def test_a_silent_host_counts_as_lost_after_the_time_that_the_page_says() -> None:
    page = Path(__file__).parents[3] / "docs" / "howtos" / "job-slurm.md"

    assert f"a host that is silent for {BEAT_S * SILENT_BEATS:g} s counts as lost" in page.read_text()


def test_a_folder_that_goes_while_a_host_measures_is_told(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    with Membership(job.folder, host="a", beat_s=0.05) as host:
        host.begin()
        job.folder.hosts.rename(job.folder.path / "elsewhere")  # a beat during a removal would make a file anew
        wait_until(lambda: "the other hosts cannot see that this one lives" in caplog.text)
        with pytest.raises(StorageError, match="cannot read"):
            host.done()


def test_what_an_earlier_run_of_the_same_job_left_is_kept_and_stops_nobody(job: Job) -> None:
    before: list[dict[str, Any]] = [
        {"host": "a"},
        {"host": "b", "killed": True},
        {"host": "gone", "killed": True, "machine": "elsewhere"},
    ]
    assert merges(job.run(*before)) == 1
    again = job.run({"host": "a", "samples": 15, "expected": 2}, {"host": "b", "samples": 15, "expected": 2})
    assert (set(again), merges(again)) == ({"a", "b"}, 1)
    assert sorted(job.samples().values()) == [10, 25, 25]
    with Recording(job.folder.merged, read_only=True) as recording:
        assert len({(stream.node_id, stream.boot) for stream in recording.extents()}) == 5


def test_a_name_is_free_again_when_the_process_of_its_run_is_gone_and_not_at_the_end_of_its_measuring(job: Job) -> None:
    assert merges(job.run({"host": "a"})) == 1
    with Membership(job.folder, host="a") as merging, Membership(job.folder, host="a") as next_run:
        merging.begin()
        assert merging.end()
        next_run.begin()
        assert (merging.host, next_run.host) == ("a", "a-2")


def test_a_host_that_crashed_in_an_earlier_run_is_waited_for_in_the_next_one(job: Job) -> None:
    job.run({"host": "b", "killed": True})
    found: list[bool] = []
    with (
        Membership(job.folder, host="a", expected=2, beat_s=2.0) as first,
        Membership(job.folder, host="b", expected=2, beat_s=0.5) as late,
    ):
        first.begin()
        ending = threading.Thread(target=lambda: found.append(first.end()))
        ending.start()
        wait_until(lambda: list(job.folder.hosts.glob("*-a.1.end")), what="the end of the first host")
        late.begin()
        ending.join()
        found.append(late.end())
    assert (late.host, found) == ("b", [False, True])


def test_a_clock_that_is_hours_wrong_changes_nothing_and_is_told(job: Job) -> None:
    said = job.run({"host": "a"}, {"host": "ahead", "clock_s": 7200.0}, {"host": "behind", "clock_s": -10_800.0})
    assert merges(said) == 1
    assert {name: round(host["clock_offset_s"] / 10) * 10 for name, host in said.items()} == {
        "a": 0,
        "ahead": 7200,
        "behind": -10_800,
    }
    assert sum(job.samples().values()) == 30


def test_when_the_host_that_merges_is_killed_a_later_one_or_the_command_does_it(job: Job) -> None:
    assert merges(job.run({"host": "a", "killed_merging": True})) == 0
    assert not job.folder.merged.exists()
    assert merges(job.run({"host": "b"})) == 1
    assert sum(job.samples().values()) == 20
    assert merges(job.run({"host": "c", "killed_merging": True})) == 0
    merge(job.folder)
    assert sorted(job.samples().values()) == [10, 10, 10]
