"""A machine as files: processes with their programs, environments and cgroups, and what schedulers print about them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedmon.node.collectors.base import Roots
from fedmon.node.job.commands import CommandError, Runner, answer
from fedmon.node.job.finders import JobSearch
from fedmon.node.job.identity import SchedulerName, identify, named
from tests.node.jobs_trees import ProcTree

RECORDED = Path(__file__).parents[2] / "data" / "batch"
KERNEL_THREAD = 0x0020_0000
TOOL = 900
"""The process of the tool that looks for a job."""
V1 = ("cpuacct", "memory", "freezer")


class Machine:
    """A tree of /proc and one of cgroups below a folder."""

    def __init__(self, root: Path, *, controllers: Sequence[str] = V1) -> None:
        self.roots = Roots(proc=root / "proc", sys=root / "sys", cgroup=root / "cgroup")
        self._tree = ProcTree(self.roots.proc)
        self._controllers = controllers
        for controller in controllers:
            self._folder(controller, "")
        if not controllers:
            self._folder("", "")
            (self.roots.cgroup / "cgroup.controllers").write_text("cpu memory\n")

    def put(
        self,
        pid: int,
        name: str = "python3",
        *,
        command: str = "",
        environ: Mapping[str, str] | None = None,
        cgroup: str = "",
        **process: Any,
    ) -> int:
        """Write a process as `ProcTree` does; ``cgroup`` is the path of its own in every hierarchy."""
        text = b"".join(f"{key}={value}".encode() + b"\0" for key, value in (environ or {}).items())
        self._tree.put(pid, name=name, environ=text, **process)
        folder = self.roots.proc / str(pid)
        (folder / "comm").write_text(f"{name[:15]}\n")
        (folder / "cmdline").write_bytes((command or name).replace(" ", "\0").encode() + b"\0")
        lines = [f"{number}:{each}:{cgroup or '/'}" for number, each in enumerate(self._controllers, 1)]
        (folder / "cgroup").write_text("\n".join([*lines, f"0::{'/' if lines else cgroup or '/'}"]) + "\n")
        for controller in (self._controllers or ("",)) if cgroup else ():
            with (self._folder(controller, cgroup) / "cgroup.procs").open("a") as file:
                file.write(f"{pid}\n")
        return pid

    def search(
        self, environ: Mapping[str, str], run: Runner | None = None, *, job_id: str = "",
        scheduler: SchedulerName = "slurm", host: str = "localhost", **options: Any,
    ) -> JobSearch:  # fmt: skip
        """Return the search of the tool for the job of its environment, or for that of an id from outside."""
        identity = named(job_id, scheduler, hostname=host) if job_id else identify(environ, hostname=host, pid=TOOL)
        return JobSearch(identity, environ=environ, run=run or Commands(), roots=self.roots, exclude=(TOOL,), **options)

    def take(self, pid: int) -> None:
        """Remove a process."""
        self._tree.take(pid)

    def _folder(self, controller: str, path: str) -> Path:
        folder = self.roots.cgroup / controller
        for level in ["", *path.strip("/").split("/")]:
            folder = folder / level
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cgroup.procs").touch()
        return folder


class Output(NamedTuple):
    """What a command prints, and the status with which it ends."""

    argv: Sequence[str]
    status: int
    stdout: str
    stderr: str = ""


class Commands:
    """Answers commands with what was recorded of real ones, and keeps what it was asked; others are not installed."""

    def __init__(self, *outputs: Output) -> None:
        self._outputs = {tuple(output.argv): output for output in outputs}
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], timeout_s: float) -> str:
        assert timeout_s >= 0
        self.asked.append(tuple(argv))
        if tuple(argv) not in self._outputs:
            raise CommandError(f"{argv[0]} is not installed, or not on the PATH")
        return answer(*self._outputs[tuple(argv)])


def program(folder: Path, name: str, text: str) -> dict[str, str]:
    """Write a shell script; return an environment with its folder on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def recorded(name: str) -> Output:
    """Return what a command printed, from a file such as ``slurm/cgroup/listpids-running``."""
    document = json.loads((RECORDED / f"{name}.json").read_text())
    return Output(document["argv"], document["rc"], document["stdout"], document["stderr"])


def said(argv: str, stdout: str, *, status: int = 0) -> Output:
    """Return an output that is made up."""
    return Output(argv.split(), status, stdout)


def environment(name: str) -> dict[str, str]:
    """Return the environment of a real job, from a file such as ``slurm/cgroup/step``."""
    lines = (RECORDED / f"{name}.environ").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)
