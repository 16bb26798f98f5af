"""How the energy of a node is measured, and what a kilowatt-hour of it emits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fedmon.common.errors import SettingsError


class EnergySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner says about power and emissions; without a region or a factor no emissions are told."""

    region: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,32}\Z")] | None,
        Meta(
            description='Code of the region whose electricity this machine draws, such as "FR"; '
            "the how-to on energy has the table."
        ),
    ] = None
    gco2e_per_kwh: Annotated[
        Annotated[float, Meta(ge=0, le=5000)] | None,
        Meta(
            description="Grams of CO2 equivalent emitted for one kilowatt-hour, in place of the table's; needs "
            "factor_source and factor_date."
        ),
    ] = None
    factor_source: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None, Meta(description="Who published gco2e_per_kwh.")
    ] = None
    factor_date: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9]{4}(-[0-9]{2}){0,2}\Z")] | None,
        Meta(description="Year, month or day that gco2e_per_kwh holds for, such as 2024 or 2024-06-30."),
    ] = None
    factors_file: Annotated[
        Path | None,
        Meta(description="Your own table of factors, in place of the one that comes with fedmon."),
    ] = None
    pue: Annotated[
        float,
        Meta(
            description="What the building draws for each watt of its machines (power usage effectiveness); emissions "
            "are multiplied by it.",
            ge=1,
            le=10,
        ),
    ] = 1.0
    max_zone_watts: Annotated[
        float,
        Meta(
            description="The most that one processor draws, in watts; how often its counter can wrap follows from it.",
            ge=1,
            le=10_000,
        ),
    ] = 1000.0
    node_power_sensors: Annotated[
        tuple[Annotated[str, Meta(pattern="^[^/]+/.+$")], ...],
        Meta(
            description="Power sensors, as chip/sensor, that together measure this whole machine; used where the "
            "processors have no energy counters."
        ),
    ] = ()

    def __post_init__(self) -> None:
        if self.gco2e_per_kwh is not None and not (self.factor_source and self.factor_date):
            raise SettingsError(
                "energy: gco2e_per_kwh needs factor_source (who published it) and factor_date (what it holds for)"
            )
