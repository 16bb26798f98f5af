"""Real jobs for tests: a process that does what it is told, and a watch over it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Collector, Reading, Roots
from fedmon.node.collectors.job.cgroup import find_hierarchies
from fedmon.node.measure.jobs import JobWatches
from tests.support.requirements import require
from tests.support.waiting import wait_until

CHILD = Path(__file__).with_name("job_child.py")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def is_empty(folder: Path) -> bool:
    """Tell whether no process is in a cgroup."""
    return not (folder / "cgroup.procs").read_text()


@contextlib.contextmanager
def cgroups(*names: str) -> Iterator[list[Path]]:
    """Make a cgroup of one name in some hierarchies of this machine; it is removed once its processes are gone."""
    hierarchies = find_hierarchies(Path("/sys/fs/cgroup"))
    require(all(name in hierarchies for name in names), f"the hierarchies {', '.join(names)} are not mounted here")
    name = f"fedmon-test-{uuid.uuid4().hex[:8]}"
    folders = [hierarchies[each] / name for each in names]
    try:
        try:
            for folder in folders:
                folder.mkdir()
        except OSError as error:
            require(None, f"no cgroup can be made here: {error.strerror}")
        yield folders
    finally:
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                wait_until(partial(is_empty, folder), what="an empty cgroup")
                folder.rmdir()


class Program:
    """One process of job_child.py; everything that it forked ends with the block."""

    def __init__(
        self, *, session: bool = False, cgroups: Sequence[Path] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        hold, self._hold = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CHILD), str(hold)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[hold],
            start_new_session=session,
            env={**os.environ, **(environ or {})},
        )
        os.close(hold)
        for folder in cgroups:
            (folder / "cgroup.procs").write_text(str(self.pid))
        assert self._read() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._hold)
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> str:
        """Have a line done and return what is said about it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def pids(self, line: str) -> list[int]:
        """Have a line done that forks, and return the processes."""
        return [int(word) for word in self.tell(line).split()]

    def used_s(self) -> tuple[float, float]:
        """Return user and system seconds of the process and the children that it waited for, as the kernel says."""
        user, system, children_user, children_system = map(float, self.tell("times").split())
        return user + children_user, system + children_system

    def end(self) -> None:
        """End it, and wait for it."""
        self._process.kill()
        self._process.wait()

    def end_unwaited(self) -> None:
        """End it, and leave a zombie."""
        self._process.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


class Watch:
    """A job "a" that is watched without a sampler: each tick is asked for."""

    def __init__(self, roots: Roots | None = None) -> None:
        self.streams: dict[str, Sequence[Collector]] = {}
        self.watches = JobWatches(roots or Roots(), self.streams.__setitem__, self.streams.__delitem__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for collectors in self.streams.values():
            for collector in collectors:
                close = getattr(collector, "close", None)
                if close is not None:
                    close()
        self.watches._maker.rest()

    def add(self, *pids: int, cgroup: str | None = None) -> Self:
        self.watches.add("a", pids=pids, cgroup=cgroup)
        return self

    def tick(self, *names: str, mono: float | None = None) -> Reading:
        """Read all collectors, or those of these names, together."""
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        now = Instant(t=time.time(), mono=time.monotonic() if mono is None else mono)
        for collector in self.streams["job-a"]:
            if not names or collector.name in names:
                reading = collector.collect(now)
                values.update(reading.values)
                reasons.update(reading.reasons)
        self.watches.handed_on("a")
        return Reading(values, reasons)

    def end(self) -> None:
        """Have the next tick read everything, as at the end of a job."""
        for collector in self.streams["job-a"]:
            getattr(collector, "ending", lambda: None)()

    def value(self, name: str, reading: Reading | None = None) -> float:
        value = (reading or self.tick()).values[name]
        assert value is not None, name
        return value

    def cpu_s(self) -> float:
        return cpu_s(self.tick("job-processes").values)


def cpu_s(values: Mapping[str, float | None]) -> float:
    user, system = values["job_cpu_user_seconds_total"], values["job_cpu_system_seconds_total"]
    assert user is not None
    assert system is not None
    return user + system
