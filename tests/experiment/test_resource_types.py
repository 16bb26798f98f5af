"""Resource types have templates of their own or their parent's, and are found by name, also in plug-in folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedmon.common.errors import FedmonError
from fedmon.experiment import ExperimentController
from fedmon.experiment.attributes import Attribute, Flags, Trace, Types
from fedmon.experiment.errors import (
    AttributeAccessError,
    InvalidAttributeValueError,
    InvalidTypeError,
    ResourceNotCreatedError,
    UnknownAttributeError,
    UnknownTraceError,
    UnknownTypeError,
)
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.resource import ResourceManager, clsinit, clsinit_copy
from tests.experiment.own_types import added, own


@clsinit_copy
class Machine(ResourceManager):
    _rtype = "test::Machine"
    _help = "A machine."
    _platform = "test"

    own_attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("hostname", "Where it is."),
        Attribute("site", "Whose it is.", flags=Flags.Global, default="here"),
    )
    own_traces: ClassVar[tuple[Trace, ...]] = (
        Trace("stdout", "What it says."),
        Trace("log", "What it notes.", enabled=True),
    )


@clsinit_copy
class Server(Machine):
    _rtype = "test::Server"

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(Attribute("racks", "How many.", type=Types.Integer))
        cls._remove_attribute("hostname")

    @classmethod
    def _register_traces(cls) -> None:
        cls._remove_trace("log")


class Undecorated(Machine):
    _rtype = "test::Undecorated"


@clsinit
class Fresh(Machine):
    _rtype = "test::Fresh"

    own_attributes = (Attribute("own", "Its own."),)
    own_traces = ()


@pytest.fixture(autouse=True)
def factory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept, searched = ResourceFactory._resource_types, ResourceFactory._searched
    ResourceFactory._resource_types, ResourceFactory._searched = {}, set()
    monkeypatch.delenv("NEPI_SEARCH_PATH", raising=False)
    yield
    ResourceFactory._resource_types, ResourceFactory._searched = kept, searched


def test_every_resource_has_the_two_base_attributes_and_no_more() -> None:
    found = {each.name: (each.type, each.default, each.flags) for each in ResourceManager.get_attributes()}

    assert found == {
        "critical": (Types.Bool, True, Flags.Design),
        "hardRelease": (Types.Bool, False, Flags.Design),
    }
    assert ResourceManager.get_rtype() == "Resource"


@pytest.mark.parametrize(
    ("rclass", "attributes", "traces"),
    [
        (Machine, ["hostname", "site"], ["stdout", "log"]),
        (Server, ["site", "racks"], ["stdout"]),
        (Fresh, ["own"], []),
        (Undecorated, ["hostname", "site"], ["stdout", "log"]),
    ],
)
def test_a_class_adds_to_what_its_parent_has_or_begins_anew(
    rclass: type[ResourceManager], attributes: list[str], traces: list[str]
) -> None:
    assert [each.name for each in rclass.get_attributes()] == ["critical", "hardRelease", *attributes]
    assert [each.name for each in rclass.get_traces()] == traces
    assert (rclass.get_help(), rclass.get_platform()) == ("A machine.", "test")


def test_a_class_without_decorator_shares_what_its_parent_has() -> None:
    ResourceFactory.register_type(Undecorated)
    try:
        Undecorated.set_global("site", "there")

        assert Machine.get_global("site") == "there"
    finally:
        Machine.set_global("site", "here")


def test_a_global_value_is_checked_and_of_global_attributes_only() -> None:
    with pytest.raises(InvalidAttributeValueError, match="type test::Machine"):
        Machine.set_global("site", 5)
    with pytest.raises(AttributeAccessError, match="flag Global"):
        Machine.set_global("hostname", "x")
    with pytest.raises(AttributeAccessError):
        Machine.get_global("hostname")


def test_an_unknown_name_is_an_error_of_ours_and_a_key_error_that_says_what_there_is() -> None:
    for ask in (Machine.get_attribute, Machine.get_global):
        with pytest.raises(UnknownAttributeError, match="hostname, site") as caught:
            ask("hostnam")
        assert isinstance(caught.value, KeyError)
        assert isinstance(caught.value, FedmonError)
    with pytest.raises(UnknownTraceError):
        Machine._remove_trace("nothing")


def test_types_are_registered_found_and_made(ec: ExperimentController) -> None:
    again = own("test::Machine")
    for rclass in (Machine, again, Server):
        ResourceFactory.register_type(rclass)

    made = ResourceFactory.create("test::Server", ec, 7)

    assert (type(made), made.guid, made.ec, made.state.name) == (Server, 7, ec, "NEW")
    assert ResourceFactory.resource_types() == {"test::Machine": again, "test::Server": Server}
    assert ResourceFactory.get_resource_type("test::Machine") is again


@pytest.mark.parametrize("rtype", ["test::Machin", ""])
def test_an_unknown_type_is_named_with_what_there_is(rtype: str, ec: ExperimentController) -> None:
    ResourceFactory.register_type(Machine)

    with pytest.raises(UnknownTypeError, match=r"NEPI_SEARCH_PATH have no .*test::Machine") as caught:
        ResourceFactory.create(rtype, ec, 1)
    assert isinstance(caught.value, KeyError)


class Nameless(ResourceManager):
    pass


@pytest.mark.parametrize("rclass", [object, Nameless])
def test_what_is_no_type_is_refused_by_name(rclass: Any) -> None:
    with pytest.raises(InvalidTypeError):
        ResourceFactory.register_type(rclass)
    assert ResourceFactory.resource_types() == {}


def no_power(self: ResourceManager, ec: Any, guid: int) -> None:
    raise OSError("no power")


@pytest.mark.parametrize(("init", "reason"), [(no_power, "OSError: no power"), (lambda *_: None, "super")])
def test_a_constructor_that_fails_is_named(init: Any, reason: str, ec: ExperimentController) -> None:
    ResourceFactory.register_type(own("test::Failing", __init__=init))

    with pytest.raises(ResourceNotCreatedError, match=reason):
        ResourceFactory.create("test::Failing", ec, 3)


def test_the_types_of_a_federation_are_there_unless_one_of_that_name_is_registered() -> None:
    for _ in range(2):
        ResourceFactory._resource_types = {}

        assert ResourceFactory.resource_types() == {}
        assert ResourceFactory.get_resource_type("fedmon::Node").get_rtype() == "fedmon::Node"

    mine = ResourceFactory.register_type(own("fedmon::Node"))
    assert ResourceFactory.get_resource_types()["fedmon::Node"] is mine


def test_resources_are_asked_for_by_type_and_by_derived_type(ec: ExperimentController) -> None:
    one = own("asked::One")
    derived = type("Derived", (own("asked::Parent"),), {"_rtype": "asked::Derived"})
    ResourceFactory.register_type(one)
    resource = added(ec, derived)
    guid = resource.guid

    assert ec.get_resources_by_type("asked::Derived") == [resource]
    assert ec.filter_resources("asked::Parent") == ec.filter_resources(derived) == [guid]
    assert ec.get_resources_by_type("asked::Parent") == ec.get_resources_by_type("asked::One") == []
    assert ec.filter_resources("asked::One") == ec.filter_resources(one) == []
    assert resource.get_connected("asked::One") == []
    other = ec.get_resource(ec.register_resource("asked::One", connectedTo=guid))
    assert [other.get_connected(rtype) for rtype in (None, "asked::Parent", derived)] == [[resource]] * 3
    assert (other.get_connected("asked::One"), resource.get_connected(one)) == ([], [other])
    assert (resource.is_rm_instance("Resource"), other.is_rm_instance("asked::Parent")) == (True, False)
    assert (ec.filter_resources("asked::Non"), ec.get_resources_by_type("asked::Non")) == ([], [])


# --- plug-in folders --------------------------------------------------------------------------------------------------

PLUGIN = """
from fedmon.experiment.resource import ResourceManager, clsinit_copy
{above}
@clsinit_copy
class {name}(ResourceManager):
    _rtype = "{prefix}::{name}"
"""


def plugin(path: Path, name: str, above: str = "", prefix: str = "plug") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PLUGIN.format(name=name, above=above, prefix=prefix), encoding="utf-8")


def test_types_in_plugin_folders_are_found_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: two folders with files of the same name, and a package with parts
    one, two = tmp_path / "one", tmp_path / "two"
    plugin(one / "machines.py", "First")
    plugin(two / "machines.py", "Second")
    plugin(two / "lab" / "__init__.py", "Lab", above="from .parts import WIDTH")
    plugin(two / "lab" / "parts.py", "Part", above="WIDTH = 3")
    (two / "notes.txt").write_text("class Third: pass")
    monkeypatch.setenv("NEPI_SEARCH_PATH", os.pathsep.join(["", str(one), str(two), str(one), ""]))

    # when
    found = {name: ResourceFactory.get_resource_type(f"plug::{name}") for name in ("First", "Second", "Lab", "Part")}

    # then
    assert {name: each.__name__ for name, each in found.items()} == {name: name for name in found}
    plugged = sorted(name for name in ResourceFactory.get_resource_types() if name.startswith("plug::"))
    assert plugged == ["plug::First", "plug::Lab", "plug::Part", "plug::Second"]


@pytest.mark.parametrize("content", ["class Broken(:", "import module_that_is_nowhere", "raise SystemExit(3)"])
def test_a_plugin_that_cannot_be_used_is_logged_in_one_line_and_the_others_are_used(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ResourceFactory.register_type(Machine)
    plugin(tmp_path / "good.py", "Good")
    plugin(tmp_path / "taken.py", "Machine", prefix="test")
    (tmp_path / "broken.py").write_text(content)

    monkeypatch.setenv("NEPI_SEARCH_PATH", f"{tmp_path}:~nobody-here")
    ResourceFactory.populate()

    broken, taken, nowhere = caplog.records
    assert f"plug-in {tmp_path}/broken cannot be loaded: " in broken.getMessage()
    assert f"plug-in {tmp_path}/taken cannot be loaded: the type test::Machine is taken" in taken.getMessage()
    assert "/~nobody-here of NEPI_SEARCH_PATH does not exist" in nowhere.getMessage()
    assert not broken.exc_info
    assert ResourceFactory.get_resource_type("plug::Good").get_rtype() == "plug::Good"
    assert ResourceFactory.get_resource_type("test::Machine") is Machine


def test_a_plugin_may_register_its_type_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(tmp_path / "own.py", "Own")
    with (tmp_path / "own.py").open("a") as file:
        file.write("from fedmon.experiment.factory import ResourceFactory\nResourceFactory.register_type(Own)\n")

    monkeypatch.setenv("NEPI_SEARCH_PATH", str(tmp_path))
    ResourceFactory.populate()
    assert "plug::Own" in ResourceFactory.resource_types()
