"""Experiments as documents: TOML that people write, and NEPI's XML; both give the same description."""

from fedmon.experiment.document.description import (
    Description,
    FailurePolicy,
    QuorumDescription,
    ResourceDescription,
    SetDescription,
    even,
    names_of,
)
from fedmon.experiment.document.files import SFormats, from_toml, from_xml, read, text_in, to_toml, to_xml, write
from fedmon.experiment.errors import DescriptionError

__all__ = [
    "Description",
    "DescriptionError",
    "FailurePolicy",
    "QuorumDescription",
    "ResourceDescription",
    "SFormats",
    "SetDescription",
    "even",
    "from_toml",
    "from_xml",
    "names_of",
    "read",
    "text_in",
    "to_toml",
    "to_xml",
    "write",
]
