"""The emissions of a kilowatt-hour: a factor with a name, a source and a date, from a table or from the owner."""

from __future__ import annotations

import csv
import importlib.resources
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import CollectorUnavailableError, Why, why

TABLE = "carbon_intensity.csv"
COLUMNS = ("region", "name", "gco2e_per_kwh", "date", "source")
MAX_GCO2E_PER_KWH = 5000.0

_HOW = 'set [energy] region = "FR" (a code of the table), or gco2e_per_kwh with factor_source and factor_date'


class Factor(msgspec.Struct, frozen=True, kw_only=True):
    """Grams of CO2 equivalent for one kilowatt-hour in a region; ``date`` is the year, month or day it holds for."""

    region: str
    name: str
    gco2e_per_kwh: float
    date: str
    source: str
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
    own = settings.factors_file
    table = factors(_lines(own), str(own)) if own else factors(_packaged(), TABLE)
    factor = table.get(settings.region.upper())
    if factor is None:
        raise CollectorUnavailableError(
            Why.NOT_FOUND, f"region {settings.region} is not in {own or TABLE}, which has {', '.join(sorted(table))}"
        )
    return factor


def factors(lines: Iterable[str], table: str) -> dict[str, Factor]:
    """Read a table: comma-separated with the columns of COLUMNS in its first line; lines that begin with # are remarks.

    Raises CollectorUnavailableError naming the line that is wrong.
    """
    rows = csv.DictReader(line for line in lines if line.strip() and not line.startswith("#"))
    if not set(COLUMNS) <= set(rows.fieldnames or ()):
        raise CollectorUnavailableError(Why.FAILED, f"{table}: its first line must name {', '.join(COLUMNS)}")
    found: dict[str, Factor] = {}
    for row in rows:
        region = (row["region"] or "").strip().upper()
        value = _value(row["gco2e_per_kwh"])
        texts = {column: (row[column] or "").strip() for column in ("name", "date", "source")}
        if not region or region in found or value is None or not all(texts.values()):
            raise CollectorUnavailableError(
                Why.FAILED,
                f"{table}: the row of region {region!r} must be the only one, hold 0 to {MAX_GCO2E_PER_KWH:g}"
                " gco2e_per_kwh, and name, date and source",
            )
        found[region] = Factor(region=region, gco2e_per_kwh=value, table=table, **texts)
    return found


def _value(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= MAX_GCO2E_PER_KWH else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise CollectorUnavailableError(Why.FAILED, f"{path}: is not text in UTF-8") from None
    except OSError as error:
        error.filename = str(path)
        raise why(error) from None


def _packaged() -> list[str]:
    folder = importlib.resources.files("fedmon.node.collectors.energy") / "data"
    return (folder / TABLE).read_text(encoding="utf-8").splitlines()
