"""The owner's command that reports a value of a program beside the running node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.errors import ConflictError, InvalidInputError
from fedmon.node.measure.user_values import PER_S
from fedmon.node.owner.desk import Desk


class AddScalar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One value; as text too, since JSON has no word for what is not finite."""

    name: str
    value: float | str
    step: int | None = None
    t: float | None = None
    job: str | None = None


def add_scalar(desk: Desk, args: AddScalar) -> dict[str, Any]:
    """Put a value on the time axis of what the node measures.

    Raises ConflictError when the node measures nothing, or when values come too fast.
    """
    if desk.user_values is None:
        raise ConflictError(
            "this node keeps no values: it is stopped, or its metrics are switched off; start it with "
            "'fedmon node start', with enabled = true in [metrics]"
        )
    try:
        value = float(args.value)
    except ValueError:
        raise InvalidInputError(f"the value of {args.name!r} is {args.value!r}, not a number") from None
    if not desk.user_values.add_scalar(args.name, value, args.step, args.t, job=args.job):
        raise ConflictError(f"{args.name!r} was dropped: this node takes {PER_S:g} values a second in the long run")
    return {"name": args.name, "taken": True}


VALUE_COMMANDS: Mapping[str, tuple[type[Any], Any]] = {"add-scalar": (AddScalar, add_scalar)}
