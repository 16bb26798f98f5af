"""Resources by their type, and what an experiment without a topology says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.experiment import ExperimentController, ResourceFactory, ResourceManager, clsinit_copy
from fedmon.experiment.errors import UnknownTypeError


@clsinit_copy
class Base(ResourceManager):
    """Is not registered: only types derived from it are."""

    _rtype = "asked::Base"


@clsinit_copy
class One(Base):
    _rtype = "asked::One"


@clsinit_copy
class Other(ResourceManager):
    _rtype = "asked::Other"


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    kept = ResourceFactory._resource_types
    ResourceFactory.register_type(One)
    ResourceFactory.register_type(Other)
    with ExperimentController("asked", tmp_path) as made:
        yield made
    ResourceFactory._resource_types = kept


def test_types_are_asked_for_as_in_nepi_resources_of_one_and_guids_of_it_and_those_derived(
    ec: ExperimentController,
) -> None:
    guid = ec.register_resource("asked::One")

    assert ec.get_resources_by_type("asked::One") == [ec.get_resource(guid)]
    assert ec.filter_resources("asked::Base") == ec.filter_resources(Base) == [guid]
    assert ec.get_resources_by_type("asked::Base") == ec.get_resources_by_type("asked::Other") == []
    assert ec.filter_resources("asked::Other") == ec.filter_resources(Other) == []


def test_a_type_that_nobody_registered_is_told_from_one_without_resources(ec: ExperimentController) -> None:
    resource = ec.get_resource(ec.register_resource("asked::One"))

    for ask in (ec.filter_resources, ec.get_resources_by_type, resource.get_connected):
        with pytest.raises(UnknownTypeError, match=r"asked::Non.*asked::One"):
            ask("asked::Non")
    assert resource.get_connected() == resource.get_connected("asked::Other") == []


def test_an_experiment_that_was_made_from_no_topology_has_none(ec: ExperimentController, tmp_path: Path) -> None:
    assert ec.netgraph is None

    with ExperimentController("asked", tmp_path, topo_type="linear", node_count=2) as made:
        assert made.netgraph is not None
        assert made.netgraph.order == 2
