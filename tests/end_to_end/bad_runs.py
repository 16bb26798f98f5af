"""A node on which plans misbehave: many of them in one approved file, each begun by its name, and what became of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.settings.values import ResearcherSettings
from fedmon.node.owner.control import call_daemon
from fedmon.node.registers.dataset_source import measure
from fedmon.node.registers.plan_source import check_now
from fedmon.researcher.federation import Federation
from fedmon.researcher.runs.errors import RunFailedError
from fedmon.researcher.runs.handle import RunHandle
from tests.support.brokers import Broker
from tests.support.node_process import CELLS, NodeProcess, audited, plain_environment, write_node_folder
from tests.support.requirements import require
from tests.support.waiting import wait_until

SECRET = "secret-of-the-launcher"
HONEST = b"""from fedmon import TrainingPlan


class Honest(TrainingPlan):
    def run(self, context):
        return {"served": 1}
"""
_HEAD = "import json, os, signal, socket, sys, threading, time\nfrom fedmon import TrainingPlan\n\n"
_TAIL = """


class Bad(TrainingPlan):
    arguments = {"case": int, "pid": int, "port": int, "key": str, "other": str}

    def run(self, context):
        return globals()["case_" + str(context.arguments["case"])](context, self)
"""
MIB = 2**20


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What a researcher was told of a run on one node; ``values`` are null where there is no result."""

    job_id: str
    state: str
    reason: str
    values: Any
    handle: RunHandle


class Ward:
    """A node in a process of its own, its owner, and a researcher."""

    def __init__(
        self, folder: Path, broker: Broker, researcher: Federation, node: NodeProcess, cases: Mapping[str, str]
    ) -> None:
        self.folder, self.broker, self.researcher, self.node = folder, broker, researcher, node
        self.node_id = folder.name
        self.honest = self.approve(HONEST)
        self._numbers = {name: number for number, name in enumerate(cases)}
        bodies = "\n\n".join(_function(self._numbers[name], body) for name, body in cases.items())
        self.bad = self.approve((_HEAD + bodies + _TAIL).encode(), name="bad")

    def owner(self, command: str, **args: Any) -> dict[str, Any]:
        """Have the owner say something to the running node."""
        return call_daemon(self.folder, command, **args)

    def approve(self, source: bytes, *, name: str = "plan") -> str:
        """Take in a plan as the owner's own, and return its digest."""
        plan = self.owner("plan-register", source=source, name=name, check=check_now(source))["plan"]
        return str(plan["sha256"])

    def offer(self, path: Path, name: str) -> None:
        """Offer a table, by the tag of its name."""
        fields = {"name": name, "tags": [name], "data_type": "csv"}
        self.owner("dataset-add", dataset=fields, found=measure(path, "csv"))

    def begin(self, name: str, **options: Any) -> RunHandle:
        """Begin a case."""
        arguments = {"case": self._numbers[name], **options.pop("args", {})}
        return self.researcher.run(f"sha256:{self.bad}", nodes=[self.node_id], args=arguments, **options)

    def trial(self, name: str, **options: Any) -> Ended:
        """Run a case to its end."""
        return self.ended(self.begin(name, **options))

    def run(self, sha256: str, **options: Any) -> Ended:
        """Run a plan to its end."""
        return self.ended(self.researcher.run(f"sha256:{sha256}", nodes=[self.node_id], **options))

    def ended(self, handle: RunHandle, timeout_s: float = 80.0) -> Ended:
        """Wait for the end of a run, and return it."""
        values = None
        reason = ""
        try:
            values = handle.result(timeout_s)[self.node_id]
        except RunFailedError as error:
            reason = error.failed[self.node_id]
        state = handle.states()[self.node_id].state
        return Ended(job_id=handle.job_id, state=state, reason=reason, values=values, handle=handle)

    def serves(self) -> bool:
        """Tell whether the node runs the next job, and is the process that it was."""
        return self.node.alive() and self.run(self.honest).values == {"served": 1}

    def told(self, job_id: str) -> list[tuple[str, str]]:
        """Return what the audit has of the beginning and the end of a job."""
        return [
            (line["event"], line.get("state", ""))
            for line in audited(self.folder)
            if line.get("job") == job_id and line["event"] in ("run", "run-refused", "run-outcome")
        ]

    def check(self, ended: Ended, state: str, part: str = "") -> None:
        """Fail unless a job ended so, and the audit says the same once."""
        assert (ended.state, part in ended.reason) == (state, True), ended
        assert bool(ended.reason) == (state != "succeeded")
        lines = [("run-refused", "")] if state == "refused" else [("run", ""), ("run-outcome", state)]
        assert self.told(ended.job_id) == lines


def _function(number: int, body: str) -> str:
    return f"def case_{number}(context, plan):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}"


@contextlib.contextmanager
def ward(
    folder: Path,
    broker: Broker,
    cases: Mapping[str, str],
    *,
    job_output: bool,
    without_bubblewrap: bool = False,
    hosts: str = "",
    runs: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Iterator[Ward]:
    """Have a ward with small limits that serves to the end; ``hosts`` are lines that only its node's machine knows."""
    write_node_folder(
        folder,
        url=broker.url,
        policy={"researchers": ["*"], "job_output": job_output},
        metrics={"enabled": False},
        runs={
            "max_jobs": 16,
            "max_wall_s": 60.0,
            "max_tmp_bytes": 8 * MIB,
            "max_memory_bytes": 192 * MIB,
            "max_processes": 32,
            "max_output_bytes": 4 * MIB,
            **(runs or {}),
        },
        **sections,
    )
    settings = ResearcherSettings(id=f"alice-{folder.name}", broker=broker.settings, folder=folder / "alice")
    node: NodeProcess = NodeProcess(folder, environ=plain_environment(CANARY=SECRET))
    if without_bubblewrap or hosts:
        node = NodeElsewhere(folder, without_bubblewrap=without_bubblewrap, hosts=hosts)
    with node, Federation(settings=settings) as researcher:
        wait_until(lambda: folder.name in researcher.nodes(), what="the node")
        made = Ward(folder, broker, researcher, node, cases)
        (folder / "table.csv").write_text(CELLS)
        made.offer(folder / "table.csv", "cells")
        yield made
        assert made.serves()


class NodeElsewhere(NodeProcess):
    """A node on a machine without bubblewrap, or with other names of hosts, as far as it can tell."""

    def __init__(self, folder: Path, *, without_bubblewrap: bool = False, hosts: str = "") -> None:
        require(os.geteuid() == 0, "only root can hide parts of a machine from a process")
        super().__init__(folder, environ=plain_environment(CANARY=SECRET))
        mounts = []
        program = shutil.which("bwrap")
        if without_bubblewrap and program is not None:
            mounts.append(f"mount --bind /dev/null {program}")
        if hosts:
            file = folder / "hosts"
            file.write_text(Path("/etc/hosts").read_text() + hosts)
            mounts.append(f"mount --bind {file} /etc/hosts")
        self._words = ["unshare", "-m", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh"]

    def command(self) -> list[str]:
        """Return the words that start the node where it sees only what it is to see."""
        return [*self._words, *super().command()]
