"""The demo's three hospitals: node folders made with the owner's own commands, and their processes."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError

DATA = importlib.resources.files("fedmon.demo") / "data"
STOP_S = 6.0
COMMAND_S = 30.0
_FEDMON = (sys.executable, "-P", "-m", "fedmon")


class DemoError(FedmonError):
    """A step of the demo failed; says which, and why."""


class Hospital(msgspec.Struct, frozen=True, kw_only=True):
    """One owner of the demo: its node and dataset."""

    node_id: str
    file: str
    tags: tuple[str, ...]
    description: str


HOSPITALS = tuple(
    Hospital(
        node_id=f"hospital-{side}",
        file=f"breast_cancer_{side}.csv",
        tags=("breast-cancer", "tabular", side),
        description=f"Wisconsin diagnostic table, {part} part",
    )
    for side, part in (("north", "first"), ("east", "second"), ("south", "third"))
)


class Hospitals:
    """Makes, starts, kills and stops the three nodes; a context manager that leaves no process behind."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        self._folder, self._broker_url = folder, broker_url
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def dir_of(self, node_id: str) -> Path:
        """Return the folder of a node."""
        return self._folder / node_id

    def make(self) -> None:
        """Make the three nodes as their owners would, and start each. Raises DemoError."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(HOSPITALS)) as pool:
            list(pool.map(self._make, HOSPITALS))

    def _make(self, hospital: Hospital) -> None:
        node_id = hospital.node_id
        data = self._folder / f"{node_id}-data"
        data.mkdir(parents=True)
        table = data / hospital.file
        table.write_bytes((DATA / hospital.file).read_bytes())
        self.owner(node_id, "init", "--id", node_id, "--broker", self._broker_url)
        self._write_release(node_id, "auto")
        self.owner(node_id, "policy", "allow", "*")
        tags = [word for tag in hospital.tags for word in ("--tags", tag)]
        self.owner(
            node_id, "dataset", "add", str(table), "--name", "breast-cancer", "--type", "csv",
            "--description", hospital.description, *tags,
        )  # fmt: skip
        self.start(node_id)

    def start(self, node_id: str) -> None:
        """Start the node's daemon."""
        with (self._folder / f"{node_id}.log").open("ab") as log:
            self._processes[node_id] = subprocess.Popen(
                [*_FEDMON, "node", "start", "--dir", str(self.dir_of(node_id))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
            )

    def set_release(self, node_id: str, mode: str) -> None:
        """Change how results leave a running node, as its owner would. Raises DemoError."""
        self._write_release(node_id, mode)
        self._processes[node_id].send_signal(signal.SIGHUP)
        deadline = Deadline(COMMAND_S)
        while self.owner(node_id, "status")["release"]["mode"] != mode:
            if deadline.passed():
                raise DemoError(f"{node_id} did not follow its settings within {COMMAND_S:g} s")

    def _write_release(self, node_id: str, mode: str) -> None:
        file = self.dir_of(node_id) / "node.toml"
        file.write_text(re.sub("^mode = .*", f'mode = "{mode}"', file.read_text(), flags=re.MULTILINE))

    def kill(self, node_id: str) -> None:
        """End the node's process at once, as a crash or a power cut would."""
        self._processes[node_id].kill()  # before it is forgotten, for the sake of Ctrl-C
        self._processes.pop(node_id).wait()

    def check_alive(self) -> None:
        """Raise DemoError, with the end of its log, when a node ended by itself."""
        for node_id, process in self._processes.items():
            if process.poll() is not None:
                log = self._end_of_log(node_id, 5)
                raise DemoError(f"node {node_id} ended with exit code {process.returncode}: {log}")

    def ends_of_logs(self) -> str:
        """Return the last lines that each node logged, on one line."""
        return "; ".join(f"log of {node_id}: {self._end_of_log(node_id, 2)}" for node_id in self._processes)

    def _end_of_log(self, node_id: str, count: int) -> str:
        lines = (self._folder / f"{node_id}.log").read_text(errors="replace").splitlines()[-count:]
        return " | ".join(lines) or "(empty)"

    def owner(self, node_id: str, *words: str) -> dict[str, Any]:
        """Run one of the owner's commands in a process, and return its JSON. Raises DemoError."""
        line = [*_FEDMON, "node", *words, "--dir", str(self.dir_of(node_id)), "--json"]
        try:
            done = subprocess.run(
                line, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, env=_environment(), check=False
            )
        except subprocess.TimeoutExpired:
            raise DemoError(f"`fedmon node {' '.join(words)}` did not end within {COMMAND_S:g} s") from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
            raise DemoError(f"`fedmon node {' '.join(words)}` ended with exit code {done.returncode}: {said}")
        document: dict[str, Any] = json.loads(done.stdout)
        return document


def _environment() -> dict[str, str]:
    """Return our environment without the user's settings; plans run in the best sandbox of this machine, if any."""
    from fedmon.common.settings.keys import HISTORIC

    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("FEDMON_") and name not in HISTORIC
    }
    return kept | {"FEDMON_RUNS_SANDBOX": "limits"}
