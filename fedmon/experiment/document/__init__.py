"""Experiments as documents: XML as NEPI's, and TOML that a person writes; both give the same description."""

from fedmon.experiment.document.description import (
    Description,
    FailurePolicy,
    Net,
    QuorumDescription,
    ResourceDescription,
    SetDescription,
    Topology,
    TopologyEdge,
    TopologyNode,
    as_state,
    attributes_of,
    checked_exp_id,
    even,
    names_of,
)
from fedmon.experiment.document.errors import DescriptionError
from fedmon.experiment.document.files import SFormats, read, write
from fedmon.experiment.document.toml_reading import from_toml
from fedmon.experiment.document.toml_writing import to_toml
from fedmon.experiment.document.xml_reading import from_xml
from fedmon.experiment.document.xml_writing import to_xml

__all__ = [
    "Description",
    "DescriptionError",
    "FailurePolicy",
    "Net",
    "QuorumDescription",
    "ResourceDescription",
    "SFormats",
    "SetDescription",
    "Topology",
    "TopologyEdge",
    "TopologyNode",
    "as_state",
    "attributes_of",
    "checked_exp_id",
    "even",
    "from_toml",
    "from_xml",
    "names_of",
    "read",
    "to_toml",
    "to_xml",
    "write",
]
