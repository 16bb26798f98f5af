"""`fedmon record` as a process: killed, ended, on a full disk; the store stays whole and loses nothing."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fedmon.common.store.recording import Recording
from tests.researcher.samples.test_record import rows, stored
from tests.support.brokers import Broker
from tests.support.databases import fill_up
from tests.support.node_process import fedmon, plain_environment
from tests.support.recording_node import RecordingNode
from tests.support.waiting import wait_until

LIMITED = (
    "import resource, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, resource.RLIM_INFINITY)); "
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    "signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))); "
    "from fedmon.cli import main; main(sys.argv[1:])"
)


@contextlib.contextmanager
def recording(
    broker: Broker, folder: Path, *, limit_bytes: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run `fedmon record` on the store of a folder, with its JSON lines in a file."""
    command = ["-m", "fedmon"] if limit_bytes is None else ["-c", LIMITED.format(limit_bytes)]
    words = [
        *command,
        "record",
        str(folder / "store.fedmon"),
        "--broker",
        broker.url,
        "--researcher",
        "alice",
        "--json",
    ]
    lines = folder / "lines"
    with lines.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *words],
            env=plain_environment(FEDMON_RESEARCHER_FOLDER=str(folder / "alice")),
            stdin=subprocess.DEVNULL, stdout=output, stderr=(folder / "errors").open("w"), text=True,
        )  # fmt: skip
    try:
        yield process, lines
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)


def last(lines: Path) -> dict[str, object]:
    """Return the newest whole line."""
    whole = [line for line in lines.read_text().split("\n")[:-1] if line]
    return json.loads(whole[-1]) if whole else {}


def test_a_record_killed_at_any_moment_goes_on_with_nothing_lost_or_doubled(mosquitto: Broker, tmp_path: Path) -> None:
    path = tmp_path / "store.fedmon"
    with RecordingNode(mosquitto.port, "a", page=20) as node:
        for turn in range(2):
            with recording(mosquitto, tmp_path) as (process, _):
                node.received.clear()
                node.wait(lambda: node.leased)
                for _ in range(10):
                    node.sample(5, live=turn != 1)
                wait_until(lambda: path.exists() and stored(path))
                process.kill()
                process.wait(60)
            node.sample(7)
            node.restart()
            node.sample(1)
        with recording(mosquitto, tmp_path) as (process, _):
            sent = [(boot, seq) for (boot, _), kept in sorted(node.kept.items()) for seq in sorted(kept)]
            wait_until(lambda: len(stored(path)) == len(sent))
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)

    assert stored(path) == rows(*sent)
    assert code == 0


def test_sigterm_ends_a_record_with_a_summary_and_everything_written(mosquitto: Broker, tmp_path: Path) -> None:
    with RecordingNode(mosquitto.port, "a") as node, recording(mosquitto, tmp_path) as (process, lines):
        node.wait(lambda: node.leased)
        node.sample(5)
        wait_until(lambda: last(lines).get("stored") == 5)
        node.sample(5)
        node.sample(3, live=False)
        node.sample(1)
        wait_until(lambda: node.resends)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        told = last(lines)

    assert (code, told["ended"], told["lost"]) == (0, True, 0)
    assert [seq for _, _, seq, _ in stored(tmp_path / "store.fedmon")] == list(range(int(str(told["stored"]))))


def test_a_full_disk_is_said_once_and_what_did_not_fit_is_pulled_when_there_is_space(
    mosquitto: Broker, tmp_path: Path
) -> None:
    with (
        RecordingNode(mosquitto.port, "a", page=200) as node,
        recording(mosquitto, tmp_path, limit_bytes=200_000) as (process, lines),
    ):
        node.wait(lambda: node.leased)
        node.sample(1)
        wait_until(lambda: last(lines).get("stored") == 1)
        for number in range(300):
            node.sample(1, width=1500)
            if number % 10 == 0 and last(lines).get("error"):
                break
        error = wait_until(lambda: last(lines).get("error"))
        node.sample(10)
        process.send_signal(signal.SIGUSR1)
        count = node.next_seq[1, "host"]
        wait_until(lambda: last(lines).get("stored") == count)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0

    assert stored(tmp_path / "store.fedmon") == rows(*((1, seq) for seq in range(count)))
    assert str(tmp_path) in str(error)
    said = (tmp_path / "errors").read_text()
    assert said.count("wait in memory") == 1
    assert "is written again" in said


def test_a_disk_that_is_full_to_the_end_is_said_at_the_end(mosquitto: Broker, tmp_path: Path) -> None:
    Recording(tmp_path / "store.fedmon").close()
    fill_up(tmp_path / "store.fedmon", "batch")
    with RecordingNode(mosquitto.port, "a") as node, recording(mosquitto, tmp_path) as (process, lines):
        node.wait(lambda: node.leased)
        node.sample(1)
        wait_until(lambda: last(lines).get("error"))
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)

    assert (code, "not everything was written: " in lines.read_text()) == (1, True)
    assert "is not complete; recording into it again asks for the rest" in (tmp_path / "errors").read_text()


def test_where_nobody_measures_a_record_ends_by_itself_and_says_why(mosquitto: Broker, tmp_path: Path) -> None:
    environ = plain_environment(FEDMON_RESEARCHER_FOLDER=str(tmp_path / "alice"))
    words = ("record", str(tmp_path / "s"), "--broker", mosquitto.url, "--researcher", "alice", "--for", "0.5")

    done = fedmon(*words, environ=environ)

    assert done.returncode == 6
    assert "no sample came" in done.stderr
