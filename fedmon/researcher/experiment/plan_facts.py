"""What is known of an experiment beside its state, when it is planned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from fedmon.researcher.experiment.plan_problems import Problem
from fedmon.researcher.experiment.situation import State
from fedmon.researcher.experiment.states import ResourceState

# A Monitor without jobs does not, but a circle that is none is worse to refuse than one is to miss.
_END_THEMSELVES = frozenset({"fedmon::Job", "fedmon::Aggregator", "fedmon::Monitor", "local::Process"})
_STAY_STARTED = frozenset({"fedmon::Node", "fedmon::Dataset", "fedmon::TrainingPlan", "fedmon::Collector", "Collector"})
_MEASURE_WHEN_READY = frozenset({"fedmon::Node"})


def _stays_started(rtype: str, connected: Collection[str]) -> bool:
    return rtype in _STAY_STARTED or (rtype == "fedmon::Monitor" and "fedmon::Job" not in connected)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the state of an experiment; whatever is null is not looked at.

    ``accepts`` tells whether the first of two resources would take a connection to the second. ``skips`` names the
    states that resources of a type pass without stopping in them. ``problems`` were found by the resources themselves,
    such as a dataset that is missing. ``stays_started`` tells of a type, and the types that a resource of it is
    connected to, whether it surely is not STOPPED without being told to.
    """

    rtypes: Collection[str] | None = None
    accepts: Callable[[int, int], bool] | None = None
    attributes: Mapping[int, Mapping[str, Any]] | None = None
    names: Mapping[int, str] = {}
    skips: Callable[[str], Collection[ResourceState]] | None = None
    ends_itself: Callable[[str], bool] = _END_THEMSELVES.__contains__
    stays_started: Callable[[str, Collection[str]], bool] = _stays_started
    measures_when_ready: Callable[[str], bool] = _MEASURE_WHEN_READY.__contains__
    problems: tuple[Problem, ...] = ()


def called(guid: int, names: Mapping[int, str], state: State) -> str:
    """Return what people call a resource: its guid, with its name, or else its type."""
    resource = state.resources.get(guid)
    more = names.get(guid) or (resource.rtype if resource is not None else "")
    return f"resource {guid}{f' ({more})' if more else ''}"
