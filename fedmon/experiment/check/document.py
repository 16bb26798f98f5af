"""The check of an experiment's file without running it: all problems, with file and line."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fedmon.common.errors import StorageError
from fedmon.experiment.check.graph import Problem
from fedmon.experiment.check.plan import ExperimentPlan, plan
from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.document.description import Description, ResourceDescription
from fedmon.experiment.document.experiment import is_given, left_of
from fedmon.experiment.document.files import read
from fedmon.experiment.errors import (
    AttributeAccessError,
    ExperimentError,
    InvalidAttributeValueError,
    InvalidConnectionError,
    UnknownNameError,
    UnknownTypeError,
)
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.experiment.controller import ExperimentController
    from fedmon.experiment.resource import ResourceManager
    from fedmon.researcher.federation import Federation

_TOML, _XML = re.compile(r"^\s*\[\[\s*(?:resource|\"resource\")\s*\]\]"), re.compile(r"<rm\b")


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A document and its plan; ``lines`` holds the line at which each resource begins, if known."""

    path: Path
    description: Description
    plan: ExperimentPlan
    lines: dict[int, int]

    def place(self, problem: Problem) -> str:
        """Return the place of a problem: the file, and the line if known."""
        line = self.line(problem)
        return str(self.path) if line is None else f"{self.path}:{line}"

    def line(self, problem: Problem) -> int | None:
        """Return the line of the first resource of a problem."""
        return next((self.lines[guid] for guid in problem.guids if guid in self.lines), None)


def check(
    path: Path, *, wait_all_ready: bool = True, asks: bool = False, federation: Federation | None = None
) -> Checked:
    """Plan the experiment in a file; with ``asks`` ask the federation too.

    Its resources are made in a temporary folder, without their wrong parts, and none is deployed. Raises
    DescriptionError for a file without an experiment, NotFoundError, StorageError, and ConnectionFailedError.
    """
    from fedmon.experiment.controller import ExperimentController

    description = read(path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    problems: list[Problem] = []
    sound = _sound(description, problems)
    alone = tuple(replace(each, connections=()) for each in sound.resources)
    found = ExperimentPlan(state=State())
    with tempfile.TemporaryDirectory(prefix="fedmon-check-") as folder:
        try:
            made = ExperimentController.from_description(
                replace(sound, local_dir=folder, resources=alone), federation=federation
            )
        except ExperimentError as error:
            found = replace(found, problems=(*problems, Problem(kind="wrong-attribute", text=str(error))))
        else:
            try:
                problems += _refused(sound, made)
                problems += made.registry.foreseen(asks=asks and not any(each.severity == "error" for each in problems))
                found = plan(made.snapshot, problems=problems, wait_all_ready=wait_all_ready)
            finally:
                # No `shutdown`: it would call release hooks.
                made.give_up()
    return Checked(path=path, description=description, plan=found, lines=lines_of(text, description))


def lines_of(text: str, description: Description) -> dict[int, int]:
    """Return the line of each resource by its guid; nothing if the text does not tell them apart."""
    begin = _XML if text.lstrip().startswith("<") else _TOML
    lines = [number for number, line in enumerate(text.split("\n"), 1) for _ in begin.findall(line)]
    guids = [each.guid for each in description.resources]
    return dict(zip(guids, lines, strict=True)) if len(lines) == len(guids) else {}


def _sound(description: Description, problems: list[Problem]) -> Description:
    """Return a description without the wrong parts of single resources, which are added to the problems."""
    known = {each.guid for each in description.resources}
    kept = []
    for each in description.resources:
        who = f"resource {each.guid} ({each.name or each.rtype})"
        try:
            faults = dict(_faults(each, ResourceFactory.get_resource_type(each.rtype)))
        except UnknownTypeError as error:
            problems.append(Problem(kind="unknown-type", guids=(each.guid,), text=f"{who}: {error}"))
            continue
        problems += [
            Problem(kind="wrong-attribute", guids=(each.guid,), text=f"{who}: {text}") for text in faults.values()
        ]
        awaited = [guid for condition in _conditions(each) for guid in condition.group]
        for guid in dict.fromkeys([*each.connections, *awaited]):
            if guid not in known:
                text = f"{who} is connected to or waits for resource {guid}, which does not exist"
                problems.append(Problem(kind="unknown-resource", guids=(each.guid, guid), text=text))
        kept.append(
            replace(
                each,
                attributes={name: value for name, value in each.attributes.items() if name not in faults},
                sets=tuple(one for one in each.sets if one.attribute not in faults),
                traces=tuple(name for name in each.traces if name not in faults),
            )
        )
    return replace(
        description, failures=None, resources=tuple(_among(each, {one.guid for one in kept}) for each in kept)
    )


def _faults(each: ResourceDescription, rclass: type[ResourceManager]) -> Iterator[tuple[str, str]]:
    """Yield the faults in the attributes and traces of a resource, by their names."""
    set_later = [(one.attribute, one.value, True) for one in each.sets]
    for name, value, is_later in [*((name, value, False) for name, value in each.attributes.items()), *set_later]:
        try:
            attribute = rclass.get_attribute(name)
            if is_later:
                attribute.check_writable(f"type {each.rtype}", ResourceState.STARTED, is_deployed=True)
            if is_given(attribute, value):
                attribute.stored(value)
        except (UnknownNameError, InvalidAttributeValueError, AttributeAccessError) as error:
            yield name, str(error)
    traces = [trace.name for trace in rclass.get_traces()]
    for name in each.traces:
        if name not in traces:
            yield name, f"type {each.rtype} has no trace {name!r}; known: {', '.join(traces) or 'none'}"


def _conditions(each: ResourceDescription) -> Iterator[AnyCondition]:
    yield from (condition for _, condition in each.conditions)
    yield from (one.condition for one in each.sets if one.condition is not None)


def _among(each: ResourceDescription, guids: Container[int]) -> ResourceDescription:
    """Return a resource without connections to others than ``guids``, and waits for them."""
    conditions = [(action, left_of(condition, guids)) for action, condition in each.conditions]
    return replace(
        each,
        connections=tuple(guid for guid in each.connections if guid in guids),
        conditions=tuple((action, condition) for action, condition in conditions if condition is not None),
        sets=tuple(replace(one, condition=one.condition and left_of(one.condition, guids)) for one in each.sets),
    )


def _refused(description: Description, made: ExperimentController) -> Iterator[Problem]:
    """Connect the resources, and return the connections that one side refuses."""
    for each in description.resources:
        for other in each.connections:
            try:
                made.register_connection(each.guid, other)
            except InvalidConnectionError as error:
                if each.guid <= other:
                    yield Problem(kind="refused-connection", guids=(each.guid, other), text=str(error))
