from __future__ import annotations

import csv
import logging
import re
from pathlib import Path

import pytest

from fedmon.common.errors import SettingsError
from fedmon.common.settings.sources import load_node
from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import CollectorUnavailableError
from fedmon.node.collectors.energy import EnergyMeter
from fedmon.node.collectors.energy.carbon import PACKAGED, chosen_factor, factors
from tests.support.energy_tree import EnergyTree

OWN = "# mine\nregion,name,gco2e_per_kwh,date,source\nHALL-1,Hall 1,12.5,2025-01,our supplier\n"
DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_names_its_source_its_licence_and_its_year() -> None:
    remarks = [line for line in PACKAGED.read_text().splitlines() if line.startswith("#")]
    table = factors(PACKAGED)

    assert "Source: Ember" in " ".join(remarks)
    assert "CC BY 4.0" in " ".join(remarks)
    assert len(table) >= 40
    for region, factor in table.items():
        assert re.fullmatch("[A-Z]{2}", region)
        assert 10 < factor.gco2e_per_kwh < 1000
        assert factor.date == "2023"
        assert factor.name


def test_a_region_is_found_however_it_is_spelled() -> None:
    factor = chosen_factor(EnergySettings(region="fr"))

    assert (factor.region, factor.name, factor.gco2e_per_kwh, factor.date) == ("FR", "France", 56.0, "2023")
    assert factor.source == "Ember and Energy Institute via Our World in Data"


def test_the_owners_number_goes_before_the_table() -> None:
    owner = EnergySettings(region="FR", gco2e_per_kwh=0.0, factor_source="our roof", factor_date="2025-06-30")

    factor = chosen_factor(owner)

    assert (factor.region, factor.gco2e_per_kwh, factor.source, factor.date) == ("FR", 0.0, "our roof", "2025-06-30")


def test_the_owners_table_replaces_the_packaged_one(tmp_path: Path) -> None:
    file = tmp_path / "factors.csv"
    file.write_text(f"\ufeff{OWN}")

    assert chosen_factor(EnergySettings(region="hall-1", factors_file=file)).gco2e_per_kwh == 12.5
    with pytest.raises(CollectorUnavailableError, match=r"not found: region FR is not in .*, which has HALL-1"):
        chosen_factor(EnergySettings(region="FR", factors_file=file))


@pytest.mark.parametrize(
    "row",
    ["X,x,,2024,s", "X,x,nan,2024,s", "X,x,-1,2024,s", "X,x,1e9,2024,s", "X,x,12,,s", "X,x,12,2024,", "X"],
)
def test_a_table_with_a_wrong_row_is_refused_by_name(tmp_path: Path, row: str) -> None:
    (tmp_path / "own.csv").write_text(OWN + row)

    with pytest.raises(CollectorUnavailableError, match=r"failed: .*own\.csv: .* in the row of region 'X': "):
        factors(tmp_path / "own.csv")


def test_a_table_may_be_written_with_spaces_and_more_columns(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("region, name, gco2e_per_kwh, date, source\n \nX, x, 12.5, 2024, us, more\n")

    assert factors(tmp_path / "own.csv")["X"].gco2e_per_kwh == 12.5


@pytest.mark.parametrize("content", [b"", b"region;name\n", b"\xff\xfe\x00", None])
def test_a_table_that_cannot_be_read_stops_nothing_and_is_named(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "factors.csv"
    if content is not None:
        file.write_bytes(content)
    tree = EnergyTree(tmp_path / "machine")
    tree.zone("intel-rapl:0", "package-0", 0)

    with caplog.at_level(logging.WARNING):
        meter = EnergyMeter(tree.roots, EnergySettings(region="FR", factors_file=file))

    assert str(file) in (meter.no_factor or "")
    assert (meter.no_factor or "").startswith(("failed: ", "not found: "))
    assert str(file) in caplog.text
    assert (meter.method, meter.factor, meter.micrograms_per_kwh) == ("components", {}, None)


@pytest.mark.parametrize(("source", "date"), [(None, None), ("somebody", None), (None, "2024")])
def test_a_number_without_source_or_date_is_refused(source: str | None, date: str | None) -> None:
    with pytest.raises(SettingsError, match=r"gco2e_per_kwh needs factor_source .* and factor_date"):
        EnergySettings(gco2e_per_kwh=50.0, factor_source=source, factor_date=date)


@pytest.mark.parametrize(
    ("key", "allowed"),
    [("gco2e_per_kwh = -1", "from 0 to 5000"), ("pue = 0.5", "from 1 to 10"), ("factor_date = 'lately'", "a text"),
     ("region = 'a b'", "a text"), ("node_power_sensors = ['power1']", "a list of texts")],
)  # fmt: skip
def test_a_bad_value_is_refused_with_what_is_allowed(tmp_path: Path, key: str, allowed: str) -> None:
    (tmp_path / "node.toml").write_text(f'[node]\nid = "a"\n[energy]\n{key}\n')

    with pytest.raises(SettingsError, match=allowed):
        load_node(tmp_path, {})


def test_the_how_to_shows_the_table_as_it_is() -> None:
    rows = csv.DictReader(line for line in PACKAGED.read_text().splitlines() if not line.startswith("#"))
    text = (DOCS / "howtos" / "energy.md").read_text(encoding="utf-8")

    for row in rows:
        assert f"| {row['region']} | {row['name']} | {row['gco2e_per_kwh']} |" in text
