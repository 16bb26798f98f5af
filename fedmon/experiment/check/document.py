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
from fedmon.experiment.natures import is_kind, natures
from fedmon.experiment.situation import State

if TYPE_CHECKING:
    from fedmon.experiment.controller import ExperimentController
    from fedmon.researcher.federation import Federation


_TOML = re.compile(r"^[ \t]*\[\[[ \t]*(?:resource|\"resource\")[ \t]*\]\]", re.MULTILINE)
_XML = re.compile(r"<rm\b[^<>]*?\bguid\s*=\s*[\"'](\d+)[\"']")


def lines_of(text: str, description: Description) -> dict[int, int]:
    """Return the line of each resource by its guid; nothing if the text does not tell them apart."""
    starts: dict[int, int] = {}
    if text.lstrip().startswith("<"):
        starts = {int(found[1]): found.start() for found in _XML.finditer(text)}
    else:
        tables = [found.start() for found in _TOML.finditer(text)]
        if len(tables) == len(description.resources):
            starts = {each.guid: at for each, at in zip(description.resources, tables, strict=True)}
    lines: dict[int, int] = {}
    line, before = 1, 0
    for guid, at in sorted(starts.items(), key=lambda each: each[1]):
        line += text.count("\n", before, at)
        lines[guid], before = line, at
    return lines


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
    state, names = as_state(description), names_of(description)
    problems = (*_attribute_problems(description, state), *_failure_problems(description))
    facts = Facts(
        rtypes=ResourceFactory.get_resource_types(),
        attributes={each.guid: each.attributes for each in description.resources},
        names=names,
        problems=problems,
    )
    found = plan(state, facts, wait_all_ready=wait_all_ready)
    if all(error.kind in _UNFINISHED for error in found.errors):
        more = tuple(_problems_of_making(description, asks=asks, federation=federation))
        if more:
            found = plan(state, replace(facts, problems=(*problems, *more)), wait_all_ready=wait_all_ready)
    return Checked(path=path, description=description, plan=found, lines=lines_of(text, description))


def _attribute_problems(description: Description, state: State) -> Iterator[Problem]:
    names = names_of(description)
    for each in description.resources:
        try:
            ResourceFactory.get_resource_type(each.rtype)
        except UnknownTypeError:  # said by the plan
            continue
        who = called(each.guid, names, state)
        for text in _wrong_in(each, who):
            yield Problem(kind="wrong-attribute", guids=(each.guid,), text=text)


def _failure_problems(description: Description) -> Iterator[Problem]:
    """Return the quorums of a type of which the document has too few."""
    nature = natures()
    for quorum in () if description.failures is None else description.failures.quorums:
        if quorum.rtype is None:  # that members are there was seen when the file was read
            continue
        guids = tuple(each.guid for each in description.resources if is_kind(each.rtype, quorum.rtype, nature))
        if len(guids) < quorum.at_least:
            yield Problem(
                kind="impossible-quorum",
                guids=guids,
                text=f"failures: a quorum of {quorum.at_least} of type {quorum.rtype} can never be there: the document "
                f"has {len(guids)}",
            )


def _wrong_in(each: ResourceDescription, who: str) -> Iterator[str]:
    rclass = ResourceFactory.get_resource_type(each.rtype)
    given = [*each.attributes.items(), *((one.attribute, one.value) for one in each.sets)]
    for name, value in given:
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


def _problems_of_making(description: Description, *, asks: bool, federation: Federation | None) -> Iterator[Problem]:
    """Make all resources in a temporary folder, deploy none, and return what fails."""
    try:
        with _made(description, federation) as made:
            resources = [made.get_resource(guid) for guid in made.resources]
            for each in resources:
                yield from getattr(each, "missing", list)()
            for each in resources if asks else ():
                yield from getattr(each, "foreseen", list)()
    except InvalidConnectionError as error:
        found = list(_refused_connections(description))
        yield from found or [Problem(kind="refused-connection", text=str(error))]
    except ExperimentError as error:
        yield Problem(kind="wrong-attribute", text=str(error))


def _refused_connections(description: Description) -> Iterator[Problem]:
    """Return all connections that are refused, not only the first."""
    alone = tuple(replace(each, connections=()) for each in description.resources)
    with _made(replace(description, resources=alone)) as made:
        facts = Facts(
            accepts=lambda one, other: made.get_resource(one).valid_connection(other), names=names_of(description)
        )
        yield from Checks(as_state(description), facts).connections()


@contextmanager
def _made(description: Description, federation: Federation | None = None) -> Iterator[ExperimentController]:
    """Give a controller that leaves nothing behind."""
    from fedmon.experiment.controller import ExperimentController

    with tempfile.TemporaryDirectory(prefix="fedmon-check-") as folder:
        made = ExperimentController.from_description(replace(description, local_dir=folder), federation=federation)
        try:
            yield made
        finally:
            # No `shutdown`: it would call release hooks.
            made.give_up()
