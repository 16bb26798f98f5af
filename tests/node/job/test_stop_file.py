"""The stop file: obeyed or not, and replaced when it is of an earlier run."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fedmon.node.job.end import StopFile, run_start
from fedmon.node.job.hosts import Membership
from fedmon.node.job.identity import JobIdentity, identify
from fedmon.node.job.layout import JobFolder
from tests.node.job.machine import program
from tests.node.job.tool_runs import FEDMON, left, recordings, start, wait_measured
from tests.node.jobs_real import Program
from tests.support.environment import plain_environment
from tests.support.waiting import wait_until

SLURM = {"SLURM_JOB_ID": "4711"}


def running(path: Path, since: float = 0.0) -> StopFile:
    file = StopFile(path)
    file.begin(lambda: since)
    return file


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("FINISHED", "ipc: it says FINISHED"), ("FINISHED\n", "ipc: it says FINISHED"),
        (" finished \n", "ipc: it says FINISHED"), ("", "ipc: it is empty"), ("\n", "ipc: it is empty"),
        (None, "ipc: it was removed"), ("INPROGRESS", None), ("FINI", None), ("INPROGRESS FINISHED", None),
        ("\0\xff", None), ("INPROGRESS\n", None),
    ],
)  # fmt: skip
def test_finished_nothing_or_no_file_stops_and_any_other_text_does_not(
    tmp_path: Path, text: str | None, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = running(tmp_path / "ipc")
    assert (file.check(), file.path.read_text()) == (None, "INPROGRESS\n")
    assert list(tmp_path.iterdir()) == [file.path]
    if text is None:
        file.path.unlink()
    else:
        file.path.write_text(text)

    assert (file.check(), file.check()) == (reason, reason)
    told = caplog.text.count("cannot stop the measuring: it says neither INPROGRESS nor FINISHED")
    assert told == (reason is None and (text or "").strip() != "INPROGRESS")


@pytest.mark.parametrize(("since", "reason"), [(99.0, "ipc: it says FINISHED"), (101.0, None)])
def test_an_older_stop_is_replaced_and_a_newer_one_is_obeyed(tmp_path: Path, since: float, reason: str | None) -> None:
    path = tmp_path / "ipc"
    path.write_text("FINISHED")
    os.utime(path, (100.0, 100.0))

    assert running(path, since).check() == reason


def test_a_stop_file_that_cannot_be_made_or_read_holds_up_and_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = running(tmp_path / "ipc")
    unmade = [running(path) for path in (file.path / "ipc", tmp_path)]
    file.path.unlink()
    file.path.mkdir()

    assert [each.check() for each in (file, file, *unmade)] == [None] * 4
    assert caplog.text.count(f"{file.path} cannot stop the measuring: [Errno 21] Is a directory") == 1
    unmade[1].remove()
    assert tmp_path.is_dir()


def test_a_stop_that_another_run_removes_meanwhile_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ipc"
    path.write_text("FINISHED")

    def meanwhile() -> float:
        path.unlink()
        return 1e10

    file = StopFile(path)
    file.begin(meanwhile)

    assert (file.check(), path.read_text()) == (None, "INPROGRESS\n")
    path.write_text("FINISHED")
    assert file.check() == "ipc: it says FINISHED"


class Job:
    """The shared folder of a job, and its hosts; each begins after earlier writes."""

    def __init__(self, save_dir: Path) -> None:
        self.folder = JobFolder(save_dir, None, "4711")
        self.open: list[Membership] = []

    def host(self, name: str, *, expected: int | None = None, machine: str | None = None) -> Membership:
        host = Membership(self.folder, host=name, expected=expected, machine=machine)
        host.begin()
        self.open.append(host)
        return host

    def stop(self) -> float:
        """Write FINISHED, and return when."""
        self.folder.ipc.write_text("FINISHED\n")
        return self.folder.ipc.stat().st_mtime

    def obeys(
        self,
        changed: float,
        host: Membership,
        *,
        environ: Mapping[str, str] | None = None,
        job: JobIdentity | None = None,
    ) -> bool:
        """Tell whether a process that starts now, on this host, obeys a stop from then."""
        identity = job or identify({}, hostname="n1", pid=1)
        with Program() as process:
            return changed >= run_start(process.pid, self.folder, identity, host, environ or plain_environment())


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    for host in job.open:
        host.close()


@pytest.mark.parametrize(("expected", "is_heard"), [(None, True), (2, True), (1, False)])
def test_a_host_that_comes_late_hears_the_stop_of_the_run_of_the_others(
    job: Job, expected: int | None, *, is_heard: bool
) -> None:
    job.host("n1")
    changed = job.stop() - 0.05
    os.utime(next(job.folder.hosts.glob("*-n1.1.begin")), (changed - 1, changed - 1))

    assert job.obeys(changed, job.host("n2", expected=expected)) == is_heard


def test_hosts_that_begin_together_do_not_hear_the_stop_of_an_earlier_run(job: Job) -> None:
    changed = job.stop() - 1
    first, second = job.host("n1", expected=2), job.host("n2", expected=2)

    assert not job.obeys(changed, first)
    assert not job.obeys(changed, second)


def test_a_host_that_begins_again_alone_does_not_hear_the_stop_of_the_run_before(job: Job) -> None:
    both = [job.host("n1"), job.host("n2")]
    changed = job.stop() - 0.05
    for host in both:
        host.end()
        host.close()

    assert not job.obeys(changed, job.host("n2", expected=2, machine="after a reboot"))


@pytest.mark.parametrize(
    ("begin", "where", "is_heard"),
    [(0, None, True), (5000, None, False), (0, "job-metrics-4711", False), (0, "first-run", False)],
    ids=["in the job", "before the job", "measured before", "measured before under another prefix"],
)
def test_a_stop_that_was_faster_than_a_launcher_is_heard_in_the_first_run_of_a_slurm_job(
    job: Job, tmp_path: Path, begin: int, where: str | None, *, is_heard: bool
) -> None:
    changed = job.stop() - 1
    if where is not None:
        earlier = tmp_path / where / "recordings" / "4711" / "n1.fmr"
        earlier.parent.mkdir(parents=True)
        earlier.touch()
    environ = plain_environment(**SLURM, SLURM_JOB_START_TIME=str(int(changed) - 60 + begin))
    identity = identify(environ, hostname="n1", pid=1)

    assert job.obeys(changed, job.host("n1", expected=1), environ=environ, job=identity) == is_heard


@pytest.mark.parametrize(
    ("said", "is_heard"),
    [("1999-12-31T23:59:59", True), ("2199-01-01T00:00:00", False), ("N/A", False), (None, False)],
)
def test_squeue_is_asked_if_no_variable_tells_the_start_of_the_job(
    job: Job, tmp_path: Path, said: str | None, *, is_heard: bool
) -> None:
    changed, host = job.stop() - 1, job.host("n1", expected=1)
    environ = {"PATH": str(tmp_path / "bin")}
    if said is not None:
        environ = program(tmp_path / "bin", "squeue", f'[ "$3" = "--format=%S" ] && echo {said}')
    identity = identify(SLURM, hostname="n1", pid=1)

    assert job.obeys(changed, host, environ=environ, job=identity) == is_heard


def test_a_job_that_was_done_before_its_monitor_came_is_ended_and_the_next_run_goes_on(tmp_path: Path) -> None:
    # The kernel counts the start of a process in hundredths of a second.
    tick = f"'{sys.executable}' -c pass"
    script = f"{tick}; echo FINISHED > .ipc-4711; {tick}; '{FEDMON}' job -q -i 0.2"
    program(tmp_path, "mpirun", script)
    environ = plain_environment(FEDMON_JOB_ID="4711")

    first = subprocess.run([tmp_path / "mpirun"], cwd=tmp_path, env=environ, capture_output=True, timeout=60)
    (recording,) = recordings(tmp_path)
    reason = left(recording).job["reason"]
    assert not (tmp_path / ".ipc-4711").exists()
    with subprocess.Popen(["sh", "-c", script], cwd=tmp_path, env=environ) as second:
        wait_until(
            lambda: (tmp_path / ".ipc-4711").exists() and (tmp_path / ".ipc-4711").read_text() == "INPROGRESS\n",
            what="the second run",
        )
        (tmp_path / ".ipc-4711").write_text("FINISHED\n")
        second.wait(60)

    assert (first.returncode, first.stdout, first.stderr, second.returncode) == (0, b"", b"", 0)
    assert reason == ".ipc-4711: it says FINISHED"
    assert not (tmp_path / ".ipc-4711").exists()


def test_the_stop_file_stays_while_a_host_lives_or_is_expected_and_goes_when_all_are_over(job: Job) -> None:
    first, second = job.host("n1", expected=2), job.host("n2", expected=2)
    assert first.end() is False
    assert not first.is_over()
    assert second.end() is True
    assert second.done() is False
    assert second.is_over()


def test_the_stop_file_stays_while_the_job_is_measured_under_another_prefix(tmp_path: Path) -> None:
    started = functools.partial(
        start, tmp_path, command=["cat"], environ=plain_environment(FEDMON_JOB_ID="4711"), stdin=subprocess.PIPE
    )
    with started("-p", "one") as one, started("-p", "two") as two:
        wait_measured(tmp_path, hosts=2)
        one.communicate(timeout=60)
        assert (tmp_path / ".ipc-4711").exists()
        two.communicate(timeout=60)

    assert not (tmp_path / ".ipc-4711").exists()
