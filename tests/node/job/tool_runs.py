"""Runs of `fedmon job` for tests, and what they left behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.store.recording import Recording
from tests.common.store.recordings import seqs
from tests.node.jobs_real import Program
from tests.support.environment import plain_environment
from tests.support.waiting import wait_until

FEDMON = str(Path(sys.executable).with_name("fedmon"))


@contextlib.contextmanager
def start(
    folder: Path, *options: str, command: Sequence[str] = (), environ: Mapping[str, str] | None = None, **popen: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the tool, which records into ``folder``; it is killed when a test fails meanwhile."""
    process = begin(folder, *options, command=command, environ=environ, **popen)
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def begin(
    folder: Path, *options: str, command: Sequence[str] = (), environ: Mapping[str, str] | None = None, **popen: Any
) -> subprocess.Popen[bytes]:
    """Start the tool, which records into ``folder``."""
    words = [FEDMON, "job", "--quiet", "-d", str(folder), *options, *(["--", *command] if command else [])]
    given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | popen
    return subprocess.Popen(words, env=dict(environ or plain_environment()), text=False, **given)


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What one recording holds: samples by stream, the description, and the columns of the job's stream."""

    samples: dict[str, int]
    document: dict[str, Any]
    columns: dict[str, list[float | None]]

    @property
    def job(self) -> dict[str, Any]:
        """What is known of the job."""
        (job,) = self.document["jobs"].values()
        return dict(job)

    def last(self, series: str) -> float:
        """Return the last value of a series of the job."""
        return [*fitting(self.columns[series])][-1]

    @property
    def cpu_s(self) -> float:
        """The seconds of CPU time that the job used."""
        return sum(self.last(f"job_cpu_{mode}_seconds_total") for mode in ("user", "system"))


def left(path: Path, node_id: str | None = None) -> Left:
    """Read a recording, of one node or of its only one; everything in it, so that a damaged row is noticed."""
    with Recording(path, read_only=True) as recording:
        samples = {one.stream: one.samples for one in recording.extents() if node_id in (None, one.node_id)}
        documents = [found.document for found in recording.descriptions() if node_id in (None, found.node_id)]
        columns: dict[str, list[float | None]] = {}
        read = dict.fromkeys(samples, 0)
        for batch in recording.read(node_id):
            read[batch.stream] = read.get(batch.stream, 0) + len(batch.t)  # a stream may be new, too
            if batch.stream.startswith("job-"):
                for series, values in batch.columns.items():
                    columns.setdefault(series, []).extend(values)
        # Samples may have come between the two; one that is damaged would be missing.
        assert all(read[stream] >= count for stream, count in samples.items())
        return Left(samples=samples, document=documents[0] if documents else {}, columns=columns)


def recordings(folder: Path) -> list[Path]:
    """Name what the hosts recorded, of every job in a folder."""
    return sorted(folder.glob("*/recordings/**/*.fmr"))


def the(folder: Path) -> Left:
    """Read the one recording of a folder."""
    (path,) = recordings(folder)
    return left(path)


def numbers(path: Path, node_id: str) -> list[int]:
    """Return the numbers of a host's samples that a recording holds."""
    with Recording(path, read_only=True) as recording:
        return seqs(recording.read(node_id, stream="host"))


def logs(folder: Path) -> str:
    """Return everything that was logged."""
    return "".join(path.read_text() for path in sorted(folder.glob("*/logs/**/*.log")))


def fitting(values: Sequence[float | None]) -> Iterator[float]:
    """Return the values that are there."""
    return (value for value in values if value is not None)


def beside(process: Program) -> tuple[str, ...]:
    """Return the options that measure a process five times a second."""
    return "-i", "0.2", "--pid", str(process.pid)


def wait_measured(folder: Path, hosts: int = 1) -> None:
    """Wait until so many hosts have told of the job that they measure; a failure shows their logs."""

    class Logs:
        def __str__(self) -> str:
            return f"the measuring in {list(folder.rglob('*'))} ({logs(folder)})"

    wait_until(lambda: is_measured(folder, hosts), what=Logs())


def is_measured(folder: Path, hosts: int = 1) -> bool:
    """Tell whether so many hosts have told of the job that they measure."""
    try:
        return hosts == len([path for path in recordings(folder) if left(path).document.get("jobs")])
    except StorageError:  # it is being made
        return False
