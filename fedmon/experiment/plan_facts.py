"""What is known of an experiment beside its state, when it is planned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from fedmon.experiment.natures import Natures, natures
from fedmon.experiment.plan_problems import Problem
from fedmon.experiment.situation import State


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the state of an experiment; whatever is null is not looked at.

    ``accepts`` tells whether the first of two resources would take a connection to the second. ``nature`` tells what
    types say of themselves. ``problems`` were found by the resources themselves, such as a dataset that is missing.
    Those that are not there were taken out where ``are_removed`` says so: nobody waits for them then.
    """

    rtypes: Collection[str] | None = None
    accepts: Callable[[int, int], bool] | None = None
    attributes: Mapping[int, Mapping[str, Any]] | None = None
    names: Mapping[int, str] = {}
    nature: Natures = msgspec.field(default_factory=natures)
    problems: tuple[Problem, ...] = ()
    are_removed: bool = False


def called(guid: int, names: Mapping[int, str], state: State) -> str:
    """Return what people call a resource: its guid, with its name, or else its type."""
    resource = state.resources.get(guid)
    more = names.get(guid) or (resource.rtype if resource is not None else "")
    return f"resource {guid}{f' ({more})' if more else ''}"
