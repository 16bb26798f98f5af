"""What a node needs; a running node is asked itself, so that the doctor does not take its place at the broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from fedmon.common.errors import FedmonError
from fedmon.common.settings import load_node
from fedmon.doctor.broker_checks import reach
from fedmon.doctor.report import Check, failed, ok, skipped, warning
from fedmon.node.folder import NodeFolder
from fedmon.node.owner.control import ControlClient, DaemonNotRunningError


def examine(path: Path, environ: Mapping[str, str]) -> Iterator[Check]:
    """Make every check of a node."""
    try:
        folder = NodeFolder.open(path)
        settings = load_node(folder.path, environ)
        settings.broker.password()
    except FedmonError as error:
        yield failed("settings", str(error), "mend the file or variable that is named")
        return
    yield ok("settings", f"node {settings.id}, broker {settings.broker.url}, folder {folder.path}")
    yield from reach(settings.broker)
    if not settings.policy.researchers:
        yield warning("policy", "the node obeys nobody", "allow one with: fedmon node policy allow RESEARCHER")
    else:
        yield ok("policy", f"obeys {', '.join(settings.policy.researchers)}")
    try:
        with ControlClient(folder.path) as client:
            live = client.call("status").get("live") or {}
    except DaemonNotRunningError:
        yield skipped("connection", "the node does not run, so nobody was let in: start it with `fedmon node start`")
        return
    except FedmonError as error:
        yield failed("connection", str(error), "look into the node's log")
        return
    if live.get("connected"):
        yield ok("connection", f"connected to {live.get('host')} since {live.get('since')}, boot {live.get('boot')}")
    else:
        yield failed(
            "connection",
            f"not connected: {live.get('last_error') or 'no reason known'}",
            "check user name, password file and certificates in node.toml; the node goes on trying",
        )
