"""`fedmon job -- COMMAND`: the command runs as if nobody measured it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fedmon.common.errors import StorageError
from tests.node.job.tool_runs import (
    FEDMON,
    fitting,
    is_measured,
    logs,
    recordings,
    start,
    the,
    wait_measured,
)
from tests.support.environment import plain_environment
from tests.support.requirements import require
from tests.support.shell_here import document_here, fedmon_here
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

BURN = "import time, sys\nend = time.process_time() + float(sys.argv[1])\nwhile time.process_time() < end: pass"


def test_streams_words_and_exit_code_of_the_command_are_its_own(tmp_path: Path) -> None:
    read, write = os.pipe()
    script = f'cat; echo "$@"; echo told >&2; echo here > /proc/self/fd/{write}; exit 7'

    with start(
        tmp_path, "-i", "1", "--system", "here", "--name", "a run", "-v",
        command=["sh", "-c", script, "sh", "-e", "csv", "--help", "--", "-i", "x", os.fsdecode(b"\xff")],
        stdin=subprocess.PIPE, pass_fds=[write],
    ) as process:  # fmt: skip
        os.close(write)
        said, complained = process.communicate(b"given\n", timeout=60)
    with open(read, "rb") as file:
        assert file.read() == b"here\n"  # as a launcher of MPI and make's job server expect it

    assert (process.returncode, said, complained) == (7, b"given\n-e csv --help -- -i x \xff\n", b"told\n")
    found = the(tmp_path)
    assert found.document["labels"] == {"system": "here", "name": "a run"}
    assert (found.job["exit_code"], found.job["method"], found.job["confidence"]) == (7, "command", "certain")
    assert found.job["command"][-1] == "\\udcff"
    (config,) = tmp_path.glob("*/configs/*_run_config.yml")
    assert "sampling_freq: 1.0\n" in config.read_text()


def test_what_a_command_used_until_its_last_moment_is_counted(tmp_path: Path) -> None:
    with start(tmp_path, "-i", "30", command=[sys.executable, "-c", BURN, "0.6"]) as process:
        process.wait(60)

    found = the(tmp_path)
    assert process.returncode == 0
    assert 0.55 < found.cpu_s < 1.5
    assert found.samples["host"] == 2  # one at the start and one at the end, and the period is far from over


def test_two_commands_of_one_job_on_one_host_leave_no_host_out_of_its_report(tmp_path: Path) -> None:
    environ = plain_environment(FEDMON_JOB_ID="fit")

    with (
        start(tmp_path, command=["cat"], environ=environ, stdin=subprocess.PIPE) as first,
        start(tmp_path, command=["cat"], environ=environ, stdin=subprocess.PIPE) as second,
    ):
        wait_measured(tmp_path, hosts=2)
        for process in (first, second):  # together: those that share less than half of their time count both
            assert process.stdin is not None
            process.stdin.close()

    findings = {one["name"] for one in document_here("report", *recordings(tmp_path))["findings"]}
    assert "one-machine" in findings
    assert "absent-nodes" not in findings


@pytest.mark.parametrize("is_requeued", [False, True])
def test_commands_of_one_job_are_told_from_first_to_last_with_a_failed_one_until_it_is_requeued(
    is_requeued: bool, tmp_path: Path
) -> None:
    for script, begin in (("sleep 1; exit 3", 1000), ("sleep 1", 1000 + is_requeued)):
        environ = plain_environment(SLURM_JOB_ID=f"{10**9}", SLURM_JOB_START_TIME=str(begin))
        with start(tmp_path, "-i", "0.2", command=["sh", "-c", script], environ=environ) as process:
            process.wait(60)
    (path,) = map(str, recordings(tmp_path))
    for paths in ([path], [path, *map(str, tmp_path.glob("*/*.fmr"))]):
        found = {one["name"]: one for one in document_here("report", *paths)["findings"]}
        assert found["ending"]["severity"] == ("good" if is_requeued else "warning")
        assert found["ending"]["figures"]["exit_code"] == 0
        assert (found["ending"]["figures"]["elapsed_seconds"] > 2) is not is_requeued
        assert ("An earlier command of it failed: exit code 3." in found["ending"]["text"]) is not is_requeued
        assert found["gaps"]["severity"] == "good"


def test_context_switches_of_a_command_are_complete_with_those_of_processes_that_it_waited_for(tmp_path: Path) -> None:
    switching = textwrap.dedent("""
        import resource, subprocess, sys, time
        if len(sys.argv) == 1:
            subprocess.run([sys.executable, sys.argv[0], "a child"], check=True)
        for _ in range(400):
            time.sleep(0.0005)
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        if len(sys.argv) == 1:
            print(sum(each.ru_nvcsw for each in used), sum(each.ru_nivcsw for each in used))
    """)
    program = tmp_path / "program.py"
    program.write_text(switching)

    with start(tmp_path, "-i", "1", command=[sys.executable, str(program)]) as process:
        said, _ = process.communicate(timeout=60)

    kinds = ("voluntary", "involuntary")
    counted = [the(tmp_path).last(f'job_context_switches_total{{kind="{kind}"}}') for kind in kinds]
    own = [int(word) for word in said.split()]
    assert own[0] >= 800
    assert all(mine <= told <= mine + 100 for mine, told in zip(own, counted, strict=True))


@pytest.mark.parametrize("environ", [{}, {"FEDMON_JOB_ID": "fit.7"}], ids=["without an id", "under an id of its own"])
def test_a_command_without_cgroups_is_followed_as_their_subreaper(tmp_path: Path, environ: dict[str, str]) -> None:
    require(os.geteuid() == 0 and shutil.which("unshare"), "hiding the cgroups takes root and unshare")
    go = tmp_path / "go"
    os.mkfifo(go)
    # Both wait until the pipe is opened to write, and end when it is closed.
    script = f"(setsid sh -c 'cat {go}; :' > /dev/null &); cat {go}; exit 3"
    hidden = f'mount -t tmpfs none /sys/fs/cgroup && exec "{FEDMON}" job -q -i 0.2 -c 0.2 -d "{tmp_path}" -- sh -c "$1"'

    def processes() -> float:
        try:
            return max(fitting(the(tmp_path).columns.get("job_processes", [])), default=0)
        except (StorageError, ValueError):  # it is being made
            return 0

    with subprocess.Popen(
        ["unshare", "-m", "sh", "-c", hidden, "sh", script], env=plain_environment(**environ)
    ) as tool:
        try:
            # The orphan and its child among them.
            wait_until(lambda: processes() >= 3, what="the orphan among the processes of the job")
        finally:
            go.open("wb", buffering=0).close()
        tool.wait(60)

    found = the(tmp_path)
    assert tool.returncode == 3
    assert found.job["cgroup"] is None


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/", 126)])
def test_a_command_that_cannot_run_has_the_exit_code_of_a_shell(tmp_path: Path, command: str, code: int) -> None:
    with start(tmp_path, command=[command]) as process:
        said, complained = process.communicate(timeout=60)

    assert (code, b"") == (process.returncode, said)
    assert complained.count(b"\n") == 1
    assert code == the(tmp_path).job["exit_code"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_reaches_the_command_and_the_recording_is_complete(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"
    with start(tmp_path, "-i", "1", command=["sh", "-c", f"touch '{ready}'; exec sleep 120"]) as process:
        wait_until(lambda: ready.exists() and recordings(tmp_path))
        process.send_signal(number)
        process.wait(60)

    assert 128 + number == process.returncode
    found = the(tmp_path)
    assert (128 + number, f"the command was ended by {number.name}") == (found.job["exit_code"], found.job["reason"])


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGINT, "the command ended with exit code 4"),
        (signal.SIGTERM, "received SIGTERM, and the command did not end within 5 s"),
    ],
)
def test_a_command_is_measured_to_its_end_if_it_survives_ctrl_c_but_not_long_after_sigterm(
    tmp_path: Path, number: signal.Signals, reason: str
) -> None:
    ready, done = tmp_path / "ready", tmp_path / "done"
    waits = f"trap : INT TERM; touch '{ready}'; while [ ! -e '{done}' ]; do sleep 0.1; done; exit 4"
    with start(tmp_path, "-i", "0.5", command=["sh", "-c", waits]) as process:
        wait_until(lambda: ready.exists() and is_measured(tmp_path))
        taken = the(tmp_path).samples.get("host", 0)
        process.send_signal(number)
        if number == signal.SIGINT:
            wait_until(lambda: the(tmp_path).samples.get("host", 0) >= taken + 14, what="samples of 7 s")
        else:
            wait_until(lambda: the(tmp_path).job["reason"], what="the end of the measuring")
        done.touch()
        process.wait(60)

    assert (process.returncode, the(tmp_path).job["reason"]) == (4, reason)


def test_keys_typed_at_a_terminal_reach_the_command_once(tmp_path: Path) -> None:
    counting = textwrap.dedent("""
        import os, signal, sys, time
        got = []
        signal.signal(signal.SIGINT, lambda *_: got.append(1))
        print("ready", os.tcgetpgrp(0) == os.getpgrp(), flush=True)
        while not got:
            signal.pause()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            signal.sigtimedwait([signal.SIGUSR2], 0.05)
        print("got", len(got), flush=True)
        sys.exit(4)
    """)
    with Terminal("job", "-d", str(tmp_path), "-i", "1", "--", sys.executable, "-c", counting) as terminal:
        terminal.read_until("ready True")
        terminal.press("\x03")
        code, said = terminal.end()

    assert code == 4
    assert "got 1" in said


def test_a_command_lives_on_and_its_recording_is_completed_when_the_tool_is_killed(tmp_path: Path) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    script = f"echo $$ > '{ready}'; while [ ! -e '{go}' ]; do sleep 0.05; done; touch '{go}.seen'"
    with start(tmp_path, "-i", "0.2", command=["sh", "-c", script]) as process:
        wait_until(lambda: is_measured(tmp_path) and ready.exists() and ready.read_text())
        process.kill()
    wait_until(lambda: "the process that ran the command was killed" in logs(tmp_path))
    go.touch()

    wait_until(lambda: not _cgroups_of(process.pid), what="no cgroup")
    wait_until((tmp_path / "go.seen").exists, what="the command's own end")
    wait_until(lambda: the(tmp_path).job["reason"])
    job = the(tmp_path).job
    assert (job["reason"], job["exit_code"]) == ("the process that ran the command was killed", None)


def test_a_command_goes_on_and_it_is_told_when_the_process_that_measures_is_killed(tmp_path: Path) -> None:
    with start(tmp_path, "-i", "0.2", command=["cat"], stdin=subprocess.PIPE) as process:
        wait_measured(tmp_path)
        (begun,) = tmp_path.glob("*/hosts/*/*.begin")
        os.kill(json.loads(begun.read_text())["pid"], signal.SIGKILL)
        said, complained = process.communicate(b"given", timeout=60)

    assert (process.returncode, said) == (0, b"given")
    assert complained == b"fedmon: the process that measured was killed; 'fedmon job merge' takes its recording\n"
    assert fedmon_here("job", "merge", str(begun.parents[2])).returncode == 0


def test_a_mistake_of_ours_before_the_command_begins_is_told() -> None:
    code = "from fedmon.node.job.wrapper import Supervisor; Supervisor(['touch', '/none/x'], 'k').run(lambda _: 1 // 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert "SettingsError: measuring could not begin: ZeroDivisionError" in done.stderr


def _cgroups_of(pid: int) -> list[str]:
    """Return the cgroups that are left of a run; those of others may vanish while we look."""
    return [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name.endswith(f"-{pid}")]


def test_no_cgroup_is_left_behind_and_what_the_command_left_goes_on(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    inner = "for group in /sys/fs/cgroup/*/fedmon-*-$PPID; do mkdir $group/inner; done"
    script = f"{inner}; setsid sleep 120 > /dev/null 2>&1 & echo $! > '{pidfile}'; exit 5"
    with start(tmp_path, command=["sh", "-c", script]) as process:
        process.communicate(timeout=60)
    remaining = int(pidfile.read_text())
    try:
        os.kill(remaining, 0)
        assert process.returncode == 5
        assert "continue without it" in logs(tmp_path)
        assert _cgroups_of(process.pid) == []
    finally:
        os.kill(remaining, signal.SIGKILL)


def test_streams_that_are_closed_are_closed_for_the_command_too_and_it_is_measured(tmp_path: Path) -> None:
    look = f"ls /proc/$$/fd > '{tmp_path}/descriptors'; exit 3"
    closed = f'exec "{FEDMON}" job -d "{tmp_path}" -- sh -c "$1" <&- >&- 2>&-'

    done = subprocess.run(["sh", "-c", closed, "sh", look], env=plain_environment(), timeout=60)
    absent = f'exec "{FEDMON}" job -d "{tmp_path}/other" -- none 2>&-'
    not_found = subprocess.run(["sh", "-c", absent], env=plain_environment(), timeout=60)

    assert (done.returncode, not_found.returncode) == (3, 127)
    assert not {"0", "2"} & {*(tmp_path / "descriptors").read_text().split()}
    assert the(tmp_path).job["exit_code"] == 3


@pytest.mark.parametrize("begun", ["hosts/*/*.begin", "logs/*/*.log"])
def test_ctrl_c_before_the_command_has_begun_ends_it(tmp_path: Path, begun: str) -> None:
    with Terminal("job", "-d", str(tmp_path), "-i", "1", "--", "sleep", "20") as terminal:
        wait_until(lambda: [*tmp_path.glob(f"*/{begun}")])
        terminal.press("\x03")
        code, _ = terminal.end()

    assert code == 128 + signal.SIGINT
    assert the(tmp_path).job["reason"] == "the command was ended by SIGINT"


def test_ctrl_z_stops_the_tool_with_the_command_and_fg_goes_on(tmp_path: Path) -> None:
    shell = 'set -m; "$@"; code=$?; while [ -n "$(jobs -s)" ]; do fg > /dev/null; code=$?; done; exit $code'
    tool = (FEDMON, "job", "-d", str(tmp_path), "-i", "1", "--", "sh", "-c", "sleep 0.5; exit 7")
    with Terminal("-c", shell, "bash", *tool, program=["bash"]) as terminal:
        wait_until(lambda: [*tmp_path.glob("*/hosts/*/*.begin")])

        def ended() -> bool:
            terminal.press("\x1a")
            return terminal.process.poll() is not None

        wait_until(ended, what="the end of the command")

    assert terminal.process.returncode == 7


def test_a_stop_before_the_command_has_begun_holds_up_nothing(tmp_path: Path) -> None:
    stopped = "import os, signal\nreal = os.execvp\n"
    stopped += "os.execvp = lambda *words: (os.kill(os.getpid(), signal.SIGSTOP), real(*words))\n"
    (tmp_path / "sitecustomize.py").write_text(stopped)
    environ = plain_environment(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with start(tmp_path / "saved", command=["sh", "-c", "exit 7"], environ=environ) as process:
        assert process.wait(60) == 7


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_twenty_busy_jobs_lose_no_reading_of_their_cpu_time(tmp_path: Path) -> None:
    busy = "import time\nend = time.monotonic() + 10\nwhile time.monotonic() < end: pass"
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(start(tmp_path / str(number), "-i", "0.2", command=[sys.executable, "-c", busy]))
            for number in range(20)
        ]
        assert [job.wait(120) for job in jobs] == [0] * 20

    for number in range(20):
        readings = the(tmp_path / str(number)).columns["job_cpu_user_seconds_total"]
        assert len(readings) > 5
        assert None not in readings
