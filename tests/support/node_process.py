"""A real node in a real process, from a folder as `fedmon node init` leaves it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tomlkit

from fedmon.common.errors import NoAnswerError
from fedmon.node.owner.control import DaemonNotRunningError, call_daemon
from tests.support.environment import plain_environment
from tests.support.shell import fedmon
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until

__all__ = [
    "CELLS",
    "NO_RUNS",
    "OFTEN",
    "NodeProcess",
    "audited",
    "fedmon",
    "plain_environment",
    "write_node_folder",
    "write_node_with_cells",
]

OFTEN = {"requests_per_s": 10_000}
"""The section ``quota`` of every node here: a test that waits asks more often than a researcher may."""
NO_RUNS: Mapping[str, Any] = {"enabled": False}
"""The section ``runs`` of a node that runs no plan: to find out how it can confine them takes half of its start."""


def write_node_folder(
    folder: Path,
    *,
    node_id: str = "",
    url: str = "mqtt://127.0.0.1:1",
    researchers: Sequence[str] = ("*",),
    **sections: Mapping[str, Any],
) -> Path:
    """Write a private node folder with its settings, by default for a broker that nobody runs.

    The node is called as its folder if it is given no id, and runs plans only if it is given a section ``runs``.
    ``sections`` adds or replaces keys, such as ``metrics={...}``.
    """
    document: dict[str, dict[str, Any]] = {
        "node": {"id": node_id or folder.name},
        "broker": {"url": url},
        "policy": {"researchers": list(researchers)},
        "quota": dict(OFTEN),
    }
    for section, values in ({"runs": NO_RUNS} | sections).items():
        if values:
            document.setdefault(section, {}).update(values)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / "node.toml"
    file.write_text(tomlkit.dumps(document))
    file.chmod(0o600)
    return folder


def audited(folder: Path, event: str = "") -> list[dict[str, Any]]:
    """Return the lines of a node's audit, or those of one event, oldest first."""
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_bytes().splitlines()]
    return [line for line in lines if event in ("", line["event"])]


CELLS = "diagnosis,radius\nM,17.99\nB,11.2\nB,12.5\n"
"""A table of three rows and two columns."""


def write_node_with_cells(folder: Path, *, url: str, researchers: Sequence[str] = ("*",), **sections: Any) -> Path:
    """Write a node folder whose node runs plans and offers one dataset, "cells", tagged so and with the node's id."""
    write_node_folder(folder, url=url, researchers=researchers, **({"runs": {}} | sections))
    (folder / "table.csv").write_text(CELLS)
    words = ("--name", "cells", "--tags", f"cells,{folder.name}", "--dir", folder)
    document_here("node", "dataset", "add", folder / "table.csv", *words)
    return folder


class NodeProcess:
    """A node as a child; its output goes to ``node.out`` in the folder. A context manager.

    What is started is the program that `fedmon node start` becomes, at two thirds of the cost; ``by_verb`` starts that.
    """

    def __init__(self, folder: Path, *, environ: Mapping[str, str] | None = None, by_verb: bool = False) -> None:
        self.folder = folder
        self._program = ("fedmon", "node", "start") if by_verb else ("fedmon.node.daemon",)
        self.output = folder / "node.out"
        self._environ = plain_environment() if environ is None else dict(environ)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id of the node."""
        assert self._process is not None, "the node was not started"
        return self._process.pid

    def command(self) -> list[str]:
        """Return the words that start the node."""
        return [sys.executable, "-P", "-m", *self._program, "--dir", str(self.folder)]

    def start(self) -> None:
        """Start the node; returns before it is online."""
        assert self._process is None or self._process.poll() is not None, "the node runs already"
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(),
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def live(self) -> dict[str, Any]:
        """Return what the node tells its owner about itself; empty while it does not answer."""
        try:
            return dict(call_daemon(self.folder, "status")["live"])
        except (DaemonNotRunningError, NoAnswerError):
            return {}

    def wait_online(self) -> None:
        """Wait until the node is connected to its broker."""
        wait_until(lambda: self.live().get("connected"), what="the node online")

    def stop(self, timeout_s: float = 60.0) -> int:
        """Ask the node to stop and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end of the process and return its exit code."""
        assert self._process is not None, "the node was not started"
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """Kill the node as a crash would; does nothing when it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait(60.0)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the node."""
        assert self._process is not None, "the node was not started"
        self._process.send_signal(number)

    def log(self) -> str:
        """Return what the node printed and logged."""
        return self.output.read_text(errors="replace")
