"""The table of the owner's commands, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.node.owner.datasets import DATASET_COMMANDS
from fedmon.node.owner.desk import Desk
from fedmon.node.owner.jobs import JOB_COMMANDS
from fedmon.node.owner.plans import PLAN_COMMANDS
from fedmon.node.owner.runs import RUN_COMMANDS
from fedmon.node.owner.settings import SETTINGS_COMMANDS
from fedmon.node.owner.status import STATUS_COMMANDS
from fedmon.node.owner.values import VALUE_COMMANDS

Command = tuple[type[Any], Callable[[Desk, Any], dict[str, Any]]]

COMMANDS: Mapping[str, Command] = {
    **STATUS_COMMANDS,
    **DATASET_COMMANDS,
    **PLAN_COMMANDS,
    **SETTINGS_COMMANDS,
    **VALUE_COMMANDS,
    **JOB_COMMANDS,
    **RUN_COMMANDS,
}
"""Name of each command, the values it takes, and the function that does it."""


def run(desk: Desk, command: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Run one command and return its result as a JSON document.

    Raises InvalidInputError for a command or value that it does not know, and the errors of the registers.
    """
    if command not in COMMANDS:
        raise InvalidInputError(
            f"this node has no command {command!r}; another fedmon runs here: restart it with 'fedmon node stop' and "
            "'fedmon node start'"
        )
    kind, function = COMMANDS[command]
    try:
        values = msgspec.convert(dict(args), kind)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{command}: {error}") from None
    return function(desk, values)
