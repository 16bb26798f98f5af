"""Each run of a runner is the experiment that it was given, with what no file holds of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment import (
    Attribute,
    ExperimentController,
    ExperimentRunner,
    FailureManager,
    Flags,
    OptionalFailures,
    ResourceFactory,
    ResourceManager,
    clsinit_copy,
)
from fedmon.experiment.errors import InvalidPolicyError, UnknownGuidError
from fedmon.experiment.journal import NAME


@clsinit_copy
class Short(ResourceManager):
    _rtype = "runs::Short"

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(
            Attribute("password", "help", flags=Flags.Credential, set_hook=lambda _, new: f"{new}!")
        )
        cls._register_attribute(Attribute("unread", "help", flags=Flags.NoRead))
        cls._register_attribute(Attribute("noted", "help", flags=Flags.NoRead | Flags.Reserved))

    def do_start(self) -> None:
        super().do_start()
        self.stop()


class Own(FailureManager):
    """A failure manager that counts, and cannot be made without knowing up to where."""

    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0

    def eval_failure(self, guid: int) -> None:
        self.count += 1
        if self.count > self.limit:
            self.give_up(f"resource {guid} is one too many")


class Uncopied(FailureManager):
    def __copy__(self) -> Uncopied:
        raise TypeError("there is one only")


class Special(ExperimentController):
    pass


@pytest.fixture(scope="module", autouse=True)
def types() -> Iterator[None]:
    kept = ResourceFactory._resource_types
    ResourceFactory.register_type(Short)
    yield
    ResourceFactory._resource_types = kept


def test_each_run_has_credentials_failure_manager_federation_and_options(tmp_path: Path) -> None:
    # given
    federation: Any = object()
    seen: list[Any] = []

    def look(run: Special, number: int) -> float:
        resource = run.get_resource(1)
        run.fm.eval_failure(1)
        seen.append((number, type(run), run.federation, run.nthreads, run.persist, (Path(run.run_dir) / NAME).exists()))
        seen.append([resource._attrs[name].value for name in ("password", "unread", "noted")])
        seen.append((run.fm is not own, isinstance(run.fm, Own), getattr(run.fm, "count", None), run.fm.ec is run))
        return 1.0

    own = Own(limit=5)
    # when
    with Special("runs", tmp_path, persist=True, fm=own, federation=federation, journal=False, nthreads=9) as ec:
        ec.register_resource("runs::Short", password="hunter2", unread="unsaid")
        assert ExperimentRunner().run(ec, max_runs=2, min_runs=2, wait_guids=1, compute_metric_callback=look) == 2
        assert (own.ec is ec, own.count) == (True, 0)

    # then
    for number in (1, 2):
        assert seen[3 * number - 3 : 3 * number] == [
            (number, Special, federation, 9, True, False),
            ["hunter2!", "unsaid", None],
            (True, True, 1, True),
        ]
    written = [path.read_text() for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert written
    assert not [text for text in written if "hunter2" in text or "unsaid" in text]


def test_failures_that_end_nothing_end_no_run(tmp_path: Path) -> None:
    kinds = []

    def look(run: ExperimentController, _number: int) -> float:
        kinds.append(type(run.fm))
        return 1.0

    with ExperimentController("runs", tmp_path, fm=OptionalFailures()) as ec:
        ec.register_resource("runs::Short")
        ExperimentRunner().run(ec, max_runs=1, wait_guids=[1], compute_metric_callback=look)

    assert kinds == [OptionalFailures]


def test_what_cannot_be_run_again_is_refused_before_the_first_run(tmp_path: Path) -> None:
    runner = ExperimentRunner()
    with ExperimentController("runs", tmp_path, fm=Uncopied()) as ec:
        ec.register_resource("runs::Short")
        with pytest.raises(UnknownGuidError, match="99"):
            runner.run(ec, max_runs=2, wait_guids=[99])
        with pytest.raises(InvalidPolicyError, match="Uncopied"):
            runner.run(ec, max_runs=2)

    assert runner.failed_runs == []
