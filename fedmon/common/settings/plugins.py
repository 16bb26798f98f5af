"""Which collector plug-ins a node loads, and the settings that they alone understand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

ANY_NAME = "NAME"
"""Stands in the documented file for the name of a plug-in."""

PluginNames = Annotated[
    tuple[str, ...],
    Meta(
        description="Names of the collector plug-ins to load, from packages installed beside fedmon; "
        "they run with all rights of the node."
    ),
]
PluginSettings = Annotated[
    Mapping[str, Any], Meta(description="Settings of the collector plug-in of this name; it alone knows the keys.")
]
