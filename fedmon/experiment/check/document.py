"""The check of an experiment's file without running it: all problems, with file and line."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fedmon.common.errors import StorageError
from fedmon.experiment.check.plan import Checks, ExperimentPlan, plan
from fedmon.experiment.check.problems import Facts, Problem, called
from fedmon.experiment.describing import Foreseeing
from fedmon.experiment.document import Description, ResourceDescription, as_state, names_of, read
from fedmon.experiment.document.experiment import is_given
from fedmon.experiment.errors import (
    ExperimentError,
    InvalidAttributeValueError,
    InvalidConnectionError,
    UnknownNameError,
    UnknownTypeError,
)
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.natures import is_kind

if TYPE_CHECKING:
    from fedmon.experiment.controller import ExperimentController
    from fedmon.researcher.federation import Federation


_TOML, _XML = re.compile(r"^\s*\[\[\s*(?:resource|\"resource\")\s*\]\]"), re.compile(r"<rm\b")
_UNFINISHED = ("missing-part", "collector-without-trace")
"""Errors with which an experiment can still be made, to find more of them."""


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

    Raises DescriptionError for a file without an experiment, NotFoundError, StorageError, and ConnectionFailedError.
    """
    description = read(path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    state = as_state(description)
    facts = Facts(
        rtypes=ResourceFactory.get_resource_types(),
        attributes={each.guid: each.attributes for each in description.resources},
        names=names_of(description),
    )
    wrong = [
        Problem(kind="wrong-attribute", guids=(each.guid,), text=text)
        for each in description.resources
        for text in _wrong_in(each, called(each.guid, facts.names, state))
    ]
    facts = replace(facts, problems=(*wrong, *_lost_quorums(description, facts)))
    found = plan(state, facts, wait_all_ready=wait_all_ready)
    if all(error.kind in _UNFINISHED for error in found.errors):
        try:
            found = found.with_problems(_problems_when_made(description, facts, asks=asks, federation=federation))
        except InvalidConnectionError as error:
            found = found.with_problems([Problem(kind="refused-connection", text=str(error))])
        except ExperimentError as error:
            found = found.with_problems([Problem(kind="wrong-attribute", text=str(error))])
    return Checked(path=path, description=description, plan=found, lines=lines_of(text, description))


def lines_of(text: str, description: Description) -> dict[int, int]:
    """Return the line of each resource by its guid; nothing if the text does not tell them apart."""
    begin = _XML if text.lstrip().startswith("<") else _TOML
    lines = [number for number, line in enumerate(text.split("\n"), 1) for _ in begin.findall(line)]
    guids = [each.guid for each in description.resources]
    return dict(zip(guids, lines, strict=True)) if len(lines) == len(guids) else {}


def _wrong_in(each: ResourceDescription, who: str) -> Iterator[str]:
    """Return what is wrong with the attributes and traces of a resource."""
    try:
        rclass = ResourceFactory.get_resource_type(each.rtype)
    except UnknownTypeError:  # the plan names it
        return
    for name, value in (*each.attributes.items(), *((one.attribute, one.value) for one in each.sets)):
        try:
            attribute = rclass.get_attribute(name)
            if is_given(attribute, value):
                attribute.stored(value, resource=who)
        except (UnknownNameError, InvalidAttributeValueError) as error:
            yield str(error) if who in str(error) else f"{who}: {error}"
    known = [trace.name for trace in rclass.get_traces()]
    for name in each.traces:
        if name not in known:
            there = f"known: {', '.join(known)}" if known else "it has none"
            yield f"{who}: type {each.rtype} has no trace {name!r}; {there}"


def _lost_quorums(description: Description, facts: Facts) -> Iterator[Problem]:
    """Return the quorums of a type of which the document has too few; those of resources were checked on reading."""
    for quorum in () if description.failures is None else description.failures.quorums:
        rtype, known = quorum.rtype, description.resources
        guids = tuple(each.guid for each in known if rtype is not None and is_kind(each.rtype, rtype, facts.nature))
        if rtype is not None and len(guids) < quorum.at_least:
            text = f"failures: a quorum of {quorum.at_least} of type {rtype} is impossible: there are {len(guids)}"
            yield Problem(kind="impossible-quorum", guids=guids, text=text)


def _problems_when_made(
    description: Description, facts: Facts, *, asks: bool, federation: Federation | None
) -> Iterator[Problem]:
    """Make all resources in a temporary folder, deploy none, and return the problems that only they know."""
    from fedmon.experiment.types.base import LinkedResource

    alone = tuple(replace(each, connections=()) for each in description.resources)
    with _made(replace(description, resources=alone), federation) as made:
        accepts = replace(facts, accepts=lambda one, other: made.get_resource(one).valid_connection(other))
        refused = list(Checks(as_state(description), accepts).connections())
        yield from refused
        if refused:
            return
        resources = [made.get_resource(each.guid) for each in description.resources]
        for resource, each in zip(resources, description.resources, strict=True):
            for other in each.connections:
                resource.register_connection(other)
        for resource in resources:
            yield from resource.missing() if isinstance(resource, LinkedResource) else ()
        for resource in resources if asks else ():
            yield from resource.foreseen() if isinstance(resource, Foreseeing) else ()


@contextmanager
def _made(description: Description, federation: Federation | None) -> Iterator[ExperimentController]:
    """Give a controller that leaves nothing behind."""
    from fedmon.experiment.controller import ExperimentController

    with tempfile.TemporaryDirectory(prefix="fedmon-check-") as folder:
        made = ExperimentController.from_description(replace(description, local_dir=folder), federation=federation)
        try:
            yield made
        finally:
            # No `shutdown`: it would call release hooks.
            made.give_up()
