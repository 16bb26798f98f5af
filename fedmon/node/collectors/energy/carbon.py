"""The emissions of a kilowatt-hour: a factor with a name, a source and a date, from a table or from the owner."""

from __future__ import annotations

import csv
import importlib.resources
from importlib.resources.abc import Traversable
from typing import Annotated

import msgspec
from msgspec import Meta

from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import CollectorUnavailableError, Why

PACKAGED = importlib.resources.files("fedmon.node.collectors.energy") / "data" / "carbon_intensity.csv"

_HOW = 'set [energy] region = "FR" (a code of the table), or gco2e_per_kwh with factor_source and factor_date'

_Text = Annotated[str, Meta(min_length=1)]


class Factor(msgspec.Struct, frozen=True, kw_only=True):
    """Grams of CO2 equivalent for one kilowatt-hour in a region; ``date`` is the year, month or day it holds for."""

    region: _Text
    name: _Text
    gco2e_per_kwh: Annotated[float, Meta(ge=0, le=5000)]
    date: _Text
    source: _Text
    table: str


def chosen_factor(settings: EnergySettings) -> Factor:
    """Return the factor that the owner has chosen; there is no world average as a fallback.

    Raises CollectorUnavailableError if none is chosen or the table is wrong.
    """
    if settings.gco2e_per_kwh is not None:
        return Factor(
            region=settings.region or "own",
            name="set by the owner",
            gco2e_per_kwh=settings.gco2e_per_kwh,
            date=settings.factor_date or "",
            source=settings.factor_source or "",
            table="settings",
        )
    if settings.region is None:
        raise CollectorUnavailableError(Why.NOT_FOUND, f"no emission factor is chosen: {_HOW}")
    table = settings.factors_file or PACKAGED
    found = factors(table)
    factor = found.get(settings.region.upper())
    if factor is None:
        there = ", ".join(sorted(found)) or "no region"
        raise CollectorUnavailableError(Why.NOT_FOUND, f"region {settings.region} is not in {table}, which has {there}")
    return factor


def factors(table: Traversable) -> dict[str, Factor]:
    """Read a table by region: comma-separated, with the columns in its first line; lines that begin with # are remarks.

    Raises CollectorUnavailableError.
    """
    found: dict[str, Factor] = {}
    region = None
    try:
        lines = table.read_text(encoding="utf-8-sig").splitlines()
        told = (line for line in lines if line.strip() and not line.startswith("#"))
        for row in csv.DictReader(told, restkey="more", skipinitialspace=True):
            region = row.get("region")
            factor = msgspec.convert({**row, "table": table.name}, Factor, strict=False)
            found[factor.region.upper()] = factor
    except (OSError, ValueError, csv.Error, msgspec.ValidationError) as error:
        row_of = f" in the row of region {region!r}" if region else ""
        raise CollectorUnavailableError(Why.FAILED, f"{table}: cannot be read{row_of}: {error}") from None
    return found
