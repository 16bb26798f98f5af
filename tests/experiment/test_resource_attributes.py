"""Flags of attributes bind everybody but the resource itself; what cannot be written down is not set."""

from __future__ import annotations

from typing import Any

import pytest

from fedmon.common.errors import FedmonError
from fedmon.experiment.attributes import Attribute, Flags, Types
from fedmon.experiment.errors import (
    AttributeAccessError,
    InvalidAttributeValueError,
    UnknownAttributeError,
    UnknownTraceError,
)
from fedmon.experiment.resource import ResourceManager, clsinit_copy
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.traces import Trace
from tests.experiment.small_experiment import SmallExperiment


@clsinit_copy
class Flagged(ResourceManager):
    _rtype = "test::Flagged"

    @classmethod
    def _register_attributes(cls) -> None:
        for name, flags in {
            "plain": 0, "noread": Flags.NoRead, "nowrite": Flags.NoWrite, "design": Flags.Design,
            "construct": Flags.Construct, "credential": Flags.Credential, "filter": Flags.Filter,
            "reserved": Flags.Reserved,
        }.items():  # fmt: skip
            cls._register_attribute(Attribute(name, "help", type=Types.Integer, flags=flags, default=0))

    @classmethod
    def _register_traces(cls) -> None:
        cls._register_trace(Trace("stdout", "help"))
        cls._register_trace(Trace("log", "help", enabled=True))

    def do_start(self) -> None:
        for attribute in type(self).get_attributes():
            if attribute.type is Types.Integer:
                self.set(attribute.name, 1 + self.get(attribute.name))
        super().do_start()


def refused(rm: ResourceManager) -> list[str]:
    """Return the flags that forbid setting; the attributes that can be set are set."""
    found: list[AttributeAccessError] = []
    for attribute in rm.get_attributes():
        if attribute.type is Types.Integer:
            try:
                rm.set(attribute.name, 5)
            except AttributeAccessError as error:
                found.append(error)
    assert {error.resource for error in found} == {"resource 1 (test::Flagged)"}
    assert all(isinstance(error, FedmonError) for error in found)
    return [f"{error.attribute}: {error.flag}" for error in found]


def test_flags_are_enforced_before_and_after_deploy() -> None:
    ec = SmallExperiment()
    rm = ec.add(Flagged)

    assert refused(rm) == ["nowrite: NoWrite", "reserved: Reserved"]

    ec.deploy(1)

    assert refused(rm) == [
        "nowrite: NoWrite", "design: Design", "construct: Construct", "credential: Design", "filter: Design",
        "reserved: Reserved",
    ]  # fmt: skip


def test_a_resource_that_was_asked_to_deploy_keeps_its_design_while_it_waits() -> None:
    ec = SmallExperiment()
    rm, other = ec.add(Flagged), ec.add(Flagged)

    ec.condition(rm.guid, ResourceAction.DEPLOY, other.guid, ResourceState.STARTED)
    ec.deploy(rm.guid)

    assert rm.state is ResourceState.NEW
    with pytest.raises(AttributeAccessError, match="asked to deploy; it is NEW"):
        rm.set("design", 1)
    assert rm.set("construct", 1) == 1


def test_what_cannot_be_read_is_read_by_its_own_hooks_alone() -> None:
    ec = SmallExperiment()
    rm = ec.add(Flagged)

    with pytest.raises(AttributeAccessError, match="NoRead"):
        rm.get("noread")

    ec.deploy(1)
    ec.work()

    assert rm.state is ResourceState.STARTED
    values = {name: rm._attrs[name].value for name in ("noread", "nowrite", "reserved", "design")}
    assert values == {"noread": 1, "nowrite": 1, "reserved": 1, "design": 1}


def test_what_conditions_are_to_set_is_checked_when_they_are_registered() -> None:
    ec = SmallExperiment()
    rm = ec.add(Flagged)

    rm.check_value("plain", 4)
    for name in ("design", "construct", "nowrite"):
        with pytest.raises(AttributeAccessError):
            rm.check_value(name, 4)
    with pytest.raises(InvalidAttributeValueError):
        rm.check_value("plain", "four")
    assert rm.get("plain") == 0


def test_a_wrong_value_names_attribute_resource_value_and_what_is_allowed() -> None:
    ec = SmallExperiment()
    rm = ec.add(Flagged)

    with pytest.raises(InvalidAttributeValueError) as caught:
        rm.set("plain", "text")

    error = caught.value
    assert (error.attribute, error.resource, error.value) == ("plain", "resource 1 (test::Flagged)", "text")
    assert error.allowed == "a whole number"
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("how", ["get", "set", "has_changed", "has_flag", "check_value", "get_attribute_of_instance"])
def test_an_unknown_attribute_is_named(how: str) -> None:
    ec = SmallExperiment()
    rm = ec.add(Flagged)
    more: dict[str, tuple[Any, ...]] = {"set": (1,), "has_flag": (Flags.Design,), "check_value": (1,)}

    with pytest.raises(UnknownAttributeError, match="plain") as caught:
        getattr(rm, how)("plan", *more.get(how, ()))
    assert isinstance(caught.value, KeyError)


def test_critical_is_what_conditions_and_failures_look_at() -> None:
    ec = SmallExperiment()
    rm = ec.add(Flagged)

    rm.set("critical", False)

    assert ec.snapshot.resources[1].critical is False
    with pytest.raises(InvalidAttributeValueError):
        rm.set("critical", "False")


def test_resources_hold_values_of_their_own() -> None:
    ec = SmallExperiment()
    one, other = ec.add(Flagged), ec.add(Flagged)

    one.set("plain", 3)

    assert (one.get("plain"), other.get("plain"), Flagged.get_attribute("plain").value) == (3, 0, 0)
    assert (one.has_changed("plain"), other.has_changed("plain")) == (True, False)
    assert [each.name for each in one.changed_attributes()] == ["plain"]
    assert {each.name: each.value for each in one.get_attributes_of_instance()}["plain"] == 3


def test_a_constructor_sets_attributes_before_anybody_knows_the_resource() -> None:
    class Prepared(Flagged):
        _rtype = "test::Prepared"

        def __init__(self, ec: Any, guid: int) -> None:
            super().__init__(ec, guid)
            self.set("plain", 8)
            self.set("critical", False)

    ec = SmallExperiment()
    rm = ec.add(Prepared)

    assert (rm.get("plain"), ec.snapshot.resources[1].critical) == (8, False)


def test_traces_are_enabled_one_by_one() -> None:
    ec = SmallExperiment()
    rm, other = ec.add(Flagged), ec.add(Flagged)

    rm.enable_trace("stdout")

    assert (rm.trace_enabled("stdout"), rm.trace_enabled("log"), other.trace_enabled("stdout")) == (True, True, False)
    assert [each.name for each in rm.get_traces_of_instance() if each.enabled] == ["stdout", "log"]
    assert {each.name: each.enabled for each in rm.get_traces_of_instance()} == {"stdout": True, "log": True}
    assert rm.trace("stdout") is None
    for ask in (rm.enable_trace, rm.trace_enabled):
        with pytest.raises(UnknownTraceError, match="log, stdout"):
            ask("stdin")
