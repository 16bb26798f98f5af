"""Node folders with plans in them, as the tests of the owner's commands need them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmon.common.settings.sources import load_node
from fedmon.node.folder import NodeFolder
from fedmon.node.owner.commands import OwnerCommands, RunningNode
from fedmon.node.registers.state import Registers
from tests.support.envelopes import approval
from tests.support.node_process import audited, write_node_folder

PLAN = b"rate = 0.1\nepochs = 3\n"


def made_folder(path: Path, *, node_id: str = "hospital-a", **sections: Any) -> Path:
    """Make the folder of a node that obeys nobody unless ``policy`` says so."""
    return write_node_folder(path, node_id=node_id, researchers=(), **sections)


@contextlib.contextmanager
def desk_of(path: Path, *, running: RunningNode | None = None) -> Iterator[OwnerCommands]:
    """Open the registers of a stopped node, as the shell does, and let the owner command there."""
    folder = NodeFolder.open(path)
    settings = load_node(folder.path, {})
    with folder.hold("test"), Registers(folder, settings) as registers:
        yield OwnerCommands(folder, settings, registers, environ={}, running=running)


def running_node(**parts: Any) -> RunningNode:
    """Return what a running node can do; nothing but what is given."""
    nothing: dict[str, Any] = dict.fromkeys(RunningNode.__dataclass_fields__)
    return RunningNode(**{**nothing, **parts})


def ask_approval(desk: OwnerCommands, source: bytes = PLAN, *, name: str = "logistic", by: str = "alice") -> str:
    """Have a researcher ask for a plan's approval; returns the plan's id."""
    request = approval(source, by=by, name=name, description="A model.")
    return desk.registers.plans.request(request, source).plan_id


def asked(folder: Path, source: bytes = PLAN, **fields: str) -> str:
    """Have a researcher ask for a plan's approval while the node is stopped; returns the plan's id."""
    with desk_of(folder) as desk:
        return ask_approval(desk, source, **fields)


def events(path: Path) -> list[str]:
    """Return the events of a folder's audit, oldest first."""
    return [line["event"] for line in audited(path)]


def done(desk: OwnerCommands, command: str, **args: object) -> dict[str, Any]:
    """Run one command at a desk."""
    return desk.run(command, args, by="eve")
