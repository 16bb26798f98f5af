"""The `fedmon` command; its groups are imported on use."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import typer
from typer.core import TyperGroup
from typer.main import get_command

import fedmon
from fedmon.common.errors import FedmonError
from fedmon.common.log import escape_control


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """Where a verb or group is written, and the one line that `fedmon --help` shows without importing it."""

    module: str
    summary: str
    group: bool = False


VERBS: Mapping[str, Verb] = {
    "demo": Verb(module="fedmon.demo.cli", summary="Watch a small federation work on this machine."),
    "nodes": Verb(module="fedmon.researcher.cli", summary="Show which nodes are there, and since when."),
    "ping": Verb(module="fedmon.researcher.cli", summary="Ask nodes for a sign of life."),
    "list": Verb(module="fedmon.researcher.cli", summary="List the datasets that nodes offer."),
    "search": Verb(module="fedmon.researcher.cli", summary="Find datasets by tags."),
    "approve": Verb(module="fedmon.researcher.cli", summary="Ask owners to approve a training plan."),
    "watch": Verb(module="fedmon.researcher.cli", summary="Watch live metrics of nodes."),
    "logs": Verb(module="fedmon.researcher.cli", summary="Follow what nodes log."),
    "node": Verb(module="fedmon.node.cli", summary="Run a node, and decide as its owner.", group=True),
    "broker": Verb(module="fedmon.broker.cli", summary="Run the broker and keep its users.", group=True),
    "doctor": Verb(module="fedmon.doctor", summary="Find out why something does not work."),
}


class _Unloaded(typer.core.TyperCommand):
    """A verb as the overview shows it."""


class LazyGroup(TyperGroup):
    """Knows the names of all verbs and imports one when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs whose code is installed, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb: only its summary for the overview, the real one when it is about to run."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        if _shows_overview(ctx):
            return _Unloaded(name=cmd_name, help=verb.summary, callback=None)
        return _loaded(cmd_name, verb)
