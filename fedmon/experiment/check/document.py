"""The check of an experiment's file without running it: all problems, with file and line."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fedmon.experiment.check.graph import Problem, ProblemKind
from fedmon.experiment.check.plan import ExperimentPlan, plan
from fedmon.experiment.document.description import Description
from fedmon.experiment.document.experiment import refusals
from fedmon.experiment.document.files import read
from fedmon.experiment.errors import ExperimentError, InvalidConnectionError, UnknownGuidError, UnknownTypeError

if TYPE_CHECKING:
    from fedmon.researcher.federation import Federation

_TOML, _XML = re.compile(r"^\s*\[\[\s*(?:resource|\"resource\")\s*\]\]"), re.compile(r"<rm\b")
_KINDS: Mapping[type[ExperimentError], ProblemKind] = {
    UnknownTypeError: "unknown-type",
    UnknownGuidError: "unknown-resource",
    InvalidConnectionError: "refused-connection",
}


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A document and its plan; ``lines`` holds the line at which each resource begins, if known."""

    path: Path
    description: Description
    plan: ExperimentPlan
    lines: dict[int, int]

    @property
    def placed(self) -> ExperimentPlan:
        """The plan, with the place of each problem in its text."""
        problems = (replace(one, text=f"{one.text} ({self.place(one)})") for one in self.plan.problems)
        return replace(self.plan, problems=tuple(problems))

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
    text = path.read_text(encoding="utf-8", errors="replace")
    names = {each.guid: each.name or each.rtype for each in description.resources}
    with tempfile.TemporaryDirectory(prefix="fedmon-check-") as folder:
        made = ExperimentController(description.exp_id, folder, federation=federation)
        try:
            found = refusals(description, made.registry, masked={})
            problems = [_problem(guids, error, names[guids[0]]) for guids, error in found]
            problems += made.registry.foreseen(asks=asks and not problems)
            planned = plan(made.snapshot, problems=problems, wait_all_ready=wait_all_ready)
        finally:
            # No `shutdown`: it would call release hooks.
            made.give_up()
    return Checked(path=path, description=description, plan=planned, lines=lines_of(text, description))


def _problem(guids: tuple[int, ...], error: ExperimentError, name: str) -> Problem:
    who, text = f"resource {guids[0]} (", str(error)
    return Problem(
        kind=_KINDS.get(type(error), "wrong-attribute"),
        guids=guids,
        text=text if who in text else f"{who}{name}): {text}",
    )


def lines_of(text: str, description: Description) -> dict[int, int]:
    """Return the line of each resource by its guid; nothing if the text does not tell them apart."""
    begin = _XML if text.lstrip().startswith("<") else _TOML
    lines = [number for number, line in enumerate(text.split("\n"), 1) for _ in begin.findall(line)]
    guids = [each.guid for each in description.resources]
    return dict(zip(guids, lines, strict=True)) if len(lines) == len(guids) else {}
