"""Flags bind everybody but the resource itself; values stay with it, and come back from files as they were."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import numpy
import pytest

from fedmon.common.errors import FedmonError
from fedmon.experiment import ExperimentController, ResourceManager, ResourceState
from fedmon.experiment.attributes import Attribute, Flags, Trace, Types
from fedmon.experiment.errors import (
    AttributeAccessError,
    InvalidAttributeValueError,
    InvalidConditionError,
    UnknownAttributeError,
    UnknownTraceError,
    UnwritableEventError,
)
from fedmon.experiment.journal import NAME
from tests.experiment.own_types import added, killed_now, started
from tests.support.waiting import wait_until

FLAGS = {
    "plain": 0, "noread": Flags.NoRead, "nowrite": Flags.NoWrite, "design": Flags.Design, "construct": Flags.Construct,
    "credential": Flags.Credential, "filter": Flags.Filter, "reserved": Flags.Reserved,
}  # fmt: skip


class Flagged(ResourceManager):
    """Adds one to each number when it starts."""

    _rtype = "test::Flagged"

    own_attributes = (
        *(Attribute(name, "help", type=Types.Integer, flags=flags, default=0) for name, flags in FLAGS.items()),
        Attribute("hidden", "help", flags=Flags.NoRead),
        Attribute("kept", "help", flags=Flags.Reserved),
        *(
            Attribute(f"all-{name}", "help", flags=Flags.Global | FLAGS[name], default="first")
            for name in ("nowrite", "reserved", "noread")
        ),
    )
    own_traces = (Trace("stdout", "help"), Trace("log", "help", enabled=True))

    def do_start(self) -> None:
        self.set("kept", "by the type")
        for name in FLAGS:
            self.set(name, 1 + self.get(name))
        super().do_start()


class Colour(enum.Enum):
    RED = "red"


class Loud(str):
    """A text that is no plain one."""

    __slots__ = ()


def spelt(_old: object, new: int) -> str:
    if new == 9:
        raise OSError("no ninth")
    return "c0de" if new == 1 else str(new)


class Hooked(ResourceManager):
    _rtype = "own::Hooked"

    own_attributes = (
        Attribute("loud", "", set_hook=lambda _, new: f"{new}!"),
        Attribute("spelt", "", Types.Integer, set_hook=spelt),
        Attribute("half", "", set_hook=lambda _old, _new: "\udc80"),
        Attribute("tenfold", "", Types.Integer, range=(0, 10), set_hook=lambda _, new: new * 10),
        Attribute("endless", "", set_hook=lambda _old, _new: float("inf")),
        Attribute("large", "", set_hook=lambda _, new: 2**80 if new else None),
        Attribute("marked", "", set_hook=lambda _, new: {"json": new}),
        Attribute("number", "", Types.Integer),
        Attribute("thing", "", set_hook=lambda _old, _new: object()),
        Attribute("pair", "", Types.Enumerate, allowed=[(1, 2), (3, (4, 5))]),
        Attribute("signer", "", flags=Flags.Credential, allowed=["key"], set_hook=lambda _old, _new: object()),
        Attribute("colour", "", Types.Enumerate, allowed=[Colour.RED]),
        Attribute("plain", ""),
    )


def refused(rm: ResourceManager) -> list[str]:
    """Return the flags that forbid setting; the attributes that can be set are set."""
    found: list[AttributeAccessError] = []
    for name in FLAGS:
        try:
            rm.set(name, 5)
        except AttributeAccessError as error:
            found.append(error)
    assert {error.resource for error in found} == {"resource 1 (test::Flagged)"}
    assert all(isinstance(error, FedmonError) for error in found)
    return [f"{error.attribute}: {error.flag}" for error in found]


def test_flags_are_enforced_before_and_after_deploy(ec: ExperimentController) -> None:
    rm = added(ec, Flagged)
    assert refused(rm) == ["nowrite: NoWrite", "reserved: Reserved"]

    ec.deploy(1)
    assert ec.wait_started(1, timeout=60)

    assert refused(rm) == [
        "nowrite: NoWrite", "design: Design", "construct: Construct", "credential: Design", "filter: Design",
        "reserved: Reserved",
    ]  # fmt: skip


def test_a_resource_that_was_asked_to_deploy_keeps_its_design_while_it_waits(ec: ExperimentController) -> None:
    rm, other = added(ec, Flagged), added(ec, Flagged)

    ec.register_condition(rm.guid, "deploy", other.guid, "STARTED")
    ec.deploy(rm.guid)

    assert rm.state is ResourceState.NEW
    with pytest.raises(AttributeAccessError, match="asked to deploy; it is NEW"):
        rm.set("design", 1)
    assert rm.set("construct", 1) == 1


def test_what_may_not_be_read_is_read_by_its_own_code_alone(ec: ExperimentController, tmp_path: Path) -> None:
    rm = added(ec, Flagged, hidden="unsaid")
    with pytest.raises(AttributeAccessError, match="NoRead"):
        rm.get("noread")
    ec.deploy(1)
    assert ec.wait_started(1, timeout=60)

    values = {each.name: each.value for each in rm.changed_attributes()}
    assert (values["noread"], values["reserved"]) == (1, 1)
    assert {each.name: each.value for each in ec.get_attributes(1)}["hidden"] is None
    shown = ec.get_attribute(1, "hidden")
    with pytest.raises(AttributeAccessError, match=r"hidden.*test::Flagged.*NoRead"):
        _ = shown.value
    ec.set_with_conditions("hidden", "unsaid", 1, 1, "STOPPED")
    assert "unsaid" not in f"{shown!r} {ec.serialize()} {ec.serialize('toml')}"
    with ExperimentController.load(ec.save(tmp_path), local_dir=tmp_path) as again:
        assert not again.snapshot.wants
        assert not any(each.is_masked for each in again.get_resource(1).changed_attributes())


def test_what_only_the_type_sets_is_saved_and_does_not_hinder_loading(ec: ExperimentController, tmp_path: Path) -> None:
    added(ec, Flagged)
    started(ec)

    for kind in ("xml", "toml"):
        assert "by the type" in ec.serialize(kind)
        with ExperimentController.load(ec.save(tmp_path, format=kind), local_dir=tmp_path) as again:
            assert again.get(1, "kept") is None


def test_what_conditions_are_to_set_is_checked_when_they_are_registered(ec: ExperimentController) -> None:
    rm, other = added(ec, Flagged), added(ec, Flagged)

    for name in ("design", "construct", "nowrite"):
        with pytest.raises(AttributeAccessError):
            ec.set_with_conditions(name, 4, rm.guid, other.guid, "STARTED")
    with pytest.raises(InvalidAttributeValueError) as caught:
        ec.set_with_conditions("plain", "four", rm.guid, other.guid, "STARTED")

    error = caught.value
    assert (error.attribute, error.resource, error.value) == ("plain", "resource 1 (test::Flagged)", "four")
    assert (error.allowed, rm.get("plain")) == ("a whole number", 0)
    command = ec.register_resource("local::Process")
    with pytest.raises(UnwritableEventError, match="cannot be written down"):
        ec.set_with_conditions("command", ["\udc80"], command, other.guid, "STARTED")
    rm.fail("lost")
    with pytest.raises(InvalidConditionError, match="resource 1 is FAILED: it cannot be set"):
        ec.set_with_conditions("plain", 4, rm.guid, other.guid, "STARTED")


def test_what_a_set_hook_refuses_when_a_condition_holds_is_a_warning(
    ec: ExperimentController, caplog: pytest.LogCaptureFixture
) -> None:
    rm = added(ec, Hooked)
    ec.set_with_conditions("spelt", 9, rm.guid, rm.guid, ResourceState.STARTED)

    started(ec)

    wait_until(lambda: "no ninth" in caplog.text)
    assert (rm.get("spelt"), ec.abort) == (None, False)


@pytest.mark.parametrize("how", ["get", "set", "has_changed", "has_flag", "get_attribute_of_instance"])
def test_an_unknown_attribute_is_named(how: str, ec: ExperimentController) -> None:
    more = (1,) if how in ("set", "has_flag") else ()

    with pytest.raises(UnknownAttributeError, match="plain") as caught:
        getattr(added(ec, Flagged), how)("plan", *more)
    assert isinstance(caught.value, KeyError)


def test_critical_is_what_conditions_and_failures_look_at(ec: ExperimentController) -> None:
    rm = added(ec, Flagged)

    rm.set("critical", False)

    assert ec.snapshot.resources[1].critical is False
    with pytest.raises(InvalidAttributeValueError):
        rm.set("critical", "False")


def test_a_constructor_sets_attributes_before_anybody_knows_the_resource(ec: ExperimentController) -> None:
    class Prepared(Flagged):
        _rtype = "test::Prepared"

        def __init__(self, ec: Any, guid: int) -> None:
            super().__init__(ec, guid)
            self.set("plain", 8)
            self.set("critical", False)

    assert (added(ec, Prepared).get("plain"), ec.snapshot.resources[1].critical) == (8, False)


def test_traces_are_enabled_one_by_one(ec: ExperimentController) -> None:
    rm, other = added(ec, Flagged), added(ec, Flagged)

    rm.enable_trace("stdout")

    assert (rm.trace_enabled("stdout"), rm.trace_enabled("log"), other.trace_enabled("stdout")) == (True, True, False)
    assert {each.name: each.enabled for each in rm.get_traces_of_instance()} == {"stdout": True, "log": True}
    assert rm.trace("stdout") is None
    for ask in (rm.enable_trace, rm.trace_enabled):
        with pytest.raises(UnknownTraceError, match="log, stdout"):
            ask("stdin")


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("loud", "w", "w!"), ("spelt", 1, "c0de"), ("spelt", 7, "7"), ("tenfold", 5, 50),
        ("large", "x", 2**80), ("endless", "x", float("inf")), ("marked", "x", {"json": "x"}), ("pair", (1, 2), (1, 2)),
        ("pair", [3, [4, 5]], (3, (4, 5))), ("colour", "red", Colour.RED), ("plain", Loud("x"), "x"),
        ("half", "x", "\udc80"),
    ],
)  # fmt: skip
def test_what_was_stored_comes_back_from_journals_and_files_as_it_was(
    ec: ExperimentController, tmp_path: Path, name: str, given: Any, stored: Any
) -> None:
    guids = [added(ec, Hooked, **{name: given}).guid, ec.register_resource("own::Hooked")]
    ec.set(guids[1], name, given)
    paths = [ec.save(tmp_path, format=kind) for kind in ("xml", "toml")]

    for path in paths:
        with ExperimentController.load(path, local_dir=tmp_path / "loaded") as again:
            assert [again.get(each, name) for each in guids] == [stored, stored]
    with ExperimentController.reconnect(killed_now(ec)) as again:
        assert [again.get(each, name) for each in guids] == [stored, stored]


@pytest.mark.parametrize(
    ("name", "note", "stored"),
    [
        ("endless", '{"json":"Infinity"}', float("inf")), ("large", '{"json":"1208925819614629174706176"}', 2**80),
        ("marked", '{"json":"{\\"json\\": \\"x\\"}"}', {"json": "x"}),
    ],
)  # fmt: skip
def test_values_in_an_older_journal_are_read(ec: ExperimentController, name: str, note: str, stored: Any) -> None:
    guid, left = added(ec, Hooked).guid, killed_now(ec)
    with open(left / NAME, "a") as journal:
        journal.write(f'{{"event":"attribute","t":1.0,"guid":{guid},"name":"{name}","value":{note}}}\n')

    with ExperimentController.reconnect(left) as again:
        assert again.get(guid, name) == stored


def test_a_credential_that_no_file_can_hold_is_that_of_the_next_run_too(ec: ExperimentController) -> None:
    guid = added(ec, Hooked, signer="key").guid

    with ec.repeats()() as again:
        assert again.get(guid, "signer") is ec.get(guid, "signer")


def test_what_no_file_can_hold_is_refused_at_the_call(ec: ExperimentController) -> None:
    guid = added(ec, Hooked).guid

    with pytest.raises(InvalidAttributeValueError, match=r"thing.*resource 1 .*a object cannot be kept"):
        ec.set(guid, "thing", "x")
    with pytest.raises(InvalidAttributeValueError, match="thing"):
        ec.register_resource("own::Hooked", thing="x")

    assert (ec.get(guid, "thing"), ec.resources) == (None, [guid])


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("plain", Loud("x"), "x"), ("pair", (3, (4, 5)), (3, (4, 5))), ("tenfold", numpy.int64(5), 50),
        ("loud", "w", "w!"),
    ],
)  # fmt: skip
def test_what_conditions_set_is_stored_likewise(ec: ExperimentController, name: str, given: Any, stored: Any) -> None:
    one, other = added(ec, Hooked), added(ec, Flagged)
    ec.set_with_conditions(name, given, one.guid, other.guid, ResourceState.STARTED)

    ec.deploy()

    wait_until(lambda: one.get(name) == stored, what="the value")


def test_of_settings_that_come_due_together_the_one_that_was_registered_last_stays(ec: ExperimentController) -> None:
    made = []

    class Heard(Flagged):
        _rtype = "test::Heard"

        def set(self, name: str, value: Any) -> Any:
            stored = super().set(name, value)
            made.append(stored)
            return stored

    one = added(ec, Heard)
    for number in range(100, 112):
        ec.set_with_conditions("plain", number, one.guid, one.guid, "STARTED")

    started(ec)

    wait_until(lambda: set(made).issuperset(range(100, 112)))
    assert (made[-12:], one.get("plain")) == (list(range(100, 112)), 111)


def test_a_global_attribute_that_nobody_may_set_or_read_is_not(ec: ExperimentController) -> None:
    for flag, name in (("NoWrite", "all-nowrite"), ("Reserved", "all-reserved")):
        with pytest.raises(AttributeAccessError, match=flag):
            ec.set_global("test::Flagged", name, "x")
        assert ec.get_global("test::Flagged", name) == "first"

    ec.set_global("test::Flagged", "all-noread", "unsaid")

    with pytest.raises(AttributeAccessError, match="NoRead"):
        ec.get_global("test::Flagged", "all-noread")
    assert "unsaid" not in str([each.value for each in Flagged.get_attributes()])
