"""What a type sets in its hooks stays with its resource, is stored as its set hook says, and comes back as it was."""

from __future__ import annotations

import enum
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from fedmon.experiment import (
    Attribute,
    ExperimentController,
    Flags,
    ResourceFactory,
    ResourceManager,
    ResourceState,
    Types,
    clsinit_copy,
)
from fedmon.experiment.errors import AttributeAccessError, InvalidAttributeValueError
from fedmon.experiment.events import AttributeSet
from fedmon.experiment.journal import NAME, read_journal
from tests.support.waiting import wait_until


class Colour(enum.Enum):
    RED = "red"


@clsinit_copy
class Parent(ResourceManager):
    _rtype = "own::Parent"

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(Attribute("word", "help"))
        cls._register_attribute(Attribute("secret", "help", flags=Flags.Credential))


class Placing(Parent):
    """Sets attributes as types of NEPI do."""

    _rtype = "own::Placing"

    def do_deploy(self) -> None:
        self._attrs["word"].value = "placed"
        self._attrs["secret"].value = "hunter2"
        super().do_deploy()


class Loud(str):
    """A text that is no plain one."""

    __slots__ = ()


def hooked(name: str, hook: Any, **more: Any) -> Attribute:
    return Attribute(name, "help", set_hook=hook, **more)


@clsinit_copy
class Hooked(ResourceManager):
    _rtype = "own::Hooked"

    @classmethod
    def _register_attributes(cls) -> None:
        for attribute in (
            hooked("loud", lambda _old, new: f"{new}!"),
            hooked("spelt", lambda _old, new: "c0de" if new == 1 else str(new), type=Types.Integer),
            hooked("tenfold", lambda _old, new: new * 10, type=Types.Integer, range=(0, 10)),
            hooked("endless", lambda _old, _new: float("inf")),
            hooked("marked", lambda _old, new: {"json": new}),
            hooked("large", lambda _old, new: 2**80 if new else None),
            hooked("thing", lambda _old, _new: object()),
            Attribute("pair", "help", type=Types.Enumerate, allowed=[(1, 2), (3, (4, 5))]),
            Attribute("colour", "help", type=Types.Enumerate, allowed=[Colour.RED]),
            Attribute("plain", "help"),
        ):
            cls._register_attribute(attribute)


@clsinit_copy
class Flagged(ResourceManager):
    _rtype = "own::Flagged"

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(Attribute("hidden", "help", flags=Flags.NoRead))
        cls._register_attribute(Attribute("number", "help", flags=Flags.NoRead, type=Types.Integer, default=0))
        cls._register_attribute(Attribute("kept", "help", flags=Flags.Reserved))
        for name, flag in {
            "all": 0,
            "nowrite": Flags.NoWrite,
            "reserved": Flags.Reserved,
            "noread": Flags.NoRead,
        }.items():
            cls._register_attribute(Attribute(name, "help", flags=Flags.Global | flag, default="first"))

    def do_deploy(self) -> None:
        self.set("kept", "by the type")
        self.set("number", self.get_attribute_of_instance("number").value + 1)
        super().do_deploy()


@pytest.fixture(scope="module", autouse=True)
def types() -> Iterator[None]:
    kept = ResourceFactory._resource_types
    for rclass in (Parent, Placing, Hooked, Flagged):
        ResourceFactory.register_type(rclass)
    yield
    ResourceFactory._resource_types = kept


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    with ExperimentController("own", tmp_path) as made:
        yield made


def test_what_a_hook_sets_in_place_is_of_its_resource_alone_and_in_the_journal(ec: ExperimentController) -> None:
    one, other = ec.register_resource("own::Placing"), ec.register_resource("own::Placing")

    ec.deploy(one)
    assert ec.wait_deployed(one, timeout=10)

    assert (ec.get(one, "word"), ec.get(one, "secret")) == ("placed", "hunter2")
    later = ec.register_resource("own::Parent")
    assert [ec.get(guid, name) for guid in (other, later) for name in ("word", "secret")] == [None] * 4
    assert [rclass.get_attribute("word").value for rclass in (Parent, Placing)] == [None, None]
    told = [event for event in read_journal(Path(ec.run_dir) / NAME) if isinstance(event, AttributeSet)]
    assert {(event.name, event.value) for event in told} == {("word", "placed"), ("secret", "********")}


def test_a_resources_own_attributes_are_checked_and_live(ec: ExperimentController) -> None:
    resource = ec.get_resource(ec.register_resource("own::Placing"))
    own = resource._attrs

    word = own["word"]
    with pytest.raises(InvalidAttributeValueError):
        word.value = 5
    word.value = "now"

    assert (word.value, word.has_changed, word.name, isinstance(word, Attribute)) == ("now", True, "word", True)
    assert ("word" in own, "nothing" in own, own.get("nothing")) == (True, False, None)
    assert {name: each.value for name, each in own.items()}["word"] == resource.get("word") == "now"


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("loud", "w", "w!"),
        ("spelt", 1, "c0de"),
        ("spelt", 7, "7"),
        ("tenfold", 5, 50),
        ("endless", "x", float("inf")),
        ("marked", "x", {"json": "x"}),
        ("large", "x", 2**80),
        ("pair", (1, 2), (1, 2)),
        ("pair", [3, [4, 5]], (3, (4, 5))),
        ("colour", "red", Colour.RED),
        ("plain", Loud("x"), "x"),
    ],
)
def test_what_was_stored_comes_back_from_journals_and_files_as_it_was(
    tmp_path: Path, name: str, given: Any, stored: Any
) -> None:
    with ExperimentController("own", tmp_path / "first") as ec:
        guid = ec.register_resource("own::Hooked", **{name: given})
        later = ec.register_resource("own::Hooked")
        ec.set(later, name, given)
        paths = [ec.save(tmp_path, format=kind) for kind in ("xml", "toml")]
        left = shutil.copytree(ec.run_dir, tmp_path / "killed" / "own" / ec.run_id)

    for path in paths:
        with ExperimentController.load(path, local_dir=tmp_path / "loaded") as again:
            assert [again.get(each, name) for each in (guid, later)] == [stored, stored]
    with ExperimentController.reconnect(left) as again:
        assert [again.get(each, name) for each in (guid, later)] == [stored, stored]


def test_what_no_file_can_hold_is_refused_at_the_call(ec: ExperimentController) -> None:
    guid = ec.register_resource("own::Hooked")

    with pytest.raises(InvalidAttributeValueError, match=r"thing.*resource 1 .*a object cannot be kept"):
        ec.set(guid, "thing", "x")
    with pytest.raises(InvalidAttributeValueError, match="thing"):
        ec.register_resource("own::Hooked", thing="x")

    assert (ec.get(guid, "thing"), ec.resources) == (None, [guid])


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("plain", Loud("x"), "x"),
        ("pair", (3, (4, 5)), (3, (4, 5))),
        ("tenfold", numpy.int64(5), 50),
        ("loud", "w", "w!"),
    ],
)
def test_what_conditions_set_is_stored_likewise(ec: ExperimentController, name: str, given: Any, stored: Any) -> None:
    one, other = ec.register_resource("own::Hooked"), ec.register_resource("own::Parent")
    ec.set_with_conditions(name, given, one, other, ResourceState.STARTED)

    ec.deploy()
    assert ec.wait_started([one, other], timeout=10)

    wait_until(lambda: ec.get(one, name) == stored, 10, what="the value")


def test_what_may_not_be_read_is_told_in_no_way(ec: ExperimentController, tmp_path: Path) -> None:
    guid = ec.register_resource("own::Flagged", hidden="unsaid")

    assert {each.name: each.value for each in ec.get_attributes(guid)}["hidden"] is None
    shown = ec.get_attribute(guid, "hidden")
    with pytest.raises(AttributeAccessError, match=r"hidden.*own::Flagged.*NoRead"):
        _ = shown.value
    assert "unsaid" not in f"{shown!r} {vars(ec.get_attributes(guid)[2])} {ec.serialize()} {ec.serialize('toml')}"
    with ExperimentController.load(ec.save(tmp_path), local_dir=tmp_path) as again:
        assert not any(each.is_masked for each in again.get_resource(guid).changed_attributes())


def test_the_code_of_the_type_reads_what_others_may_not(ec: ExperimentController) -> None:
    guid = ec.register_resource("own::Flagged")

    ec.deploy()

    assert ec.wait_deployed(guid, timeout=10)
    assert ec.get_resource(guid)._attrs["number"].value == 1


def test_what_only_the_type_sets_is_saved_and_does_not_hinder_loading(ec: ExperimentController, tmp_path: Path) -> None:
    guid = ec.register_resource("own::Flagged")
    ec.deploy()
    assert ec.wait_deployed(guid, timeout=10)

    for kind in ("xml", "toml"):
        assert "by the type" in ec.serialize(kind)
        with ExperimentController.load(ec.save(tmp_path, format=kind), local_dir=tmp_path) as again:
            assert again.get(guid, "kept") is None


@pytest.mark.parametrize(("name", "flag"), [("nowrite", "NoWrite"), ("reserved", "Reserved")])
def test_a_global_attribute_that_nobody_may_set_is_not_set_for_all(
    ec: ExperimentController, name: str, flag: str
) -> None:
    with pytest.raises(AttributeAccessError, match=flag):
        ec.set_global("own::Flagged", name, "x")

    assert ec.get_global("own::Flagged", name) == "first"


def test_a_global_attribute_that_nobody_may_read_is_not_told(ec: ExperimentController) -> None:
    ec.set_global("own::Flagged", "noread", "unsaid")

    with pytest.raises(AttributeAccessError, match="NoRead"):
        ec.get_global("own::Flagged", "noread")
    assert "unsaid" not in str([each.value for each in Flagged.get_attributes()])
