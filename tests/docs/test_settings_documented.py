"""Every setting and every variable is documented, and the documented files can be used as they are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fedmon.common.ids import checked_id
from fedmon.common.settings.keys import HISTORIC, OTHER_VARIABLES, Party, documented_file, keys_of
from fedmon.common.settings.sources import load_node, load_researcher
from tests.docs.settings_page import PARTIES

ROOT = Path(__file__).parents[2]
SETTINGS_PAGE = (ROOT / "docs/settings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("party", PARTIES)
def test_the_documented_file_is_in_step_with_the_settings(party: Party) -> None:
    assert documented_file(party) == (ROOT / f"envs/{party}.toml").read_text(encoding="utf-8")


def test_each_setting_is_described_in_sentences() -> None:
    assert [key for party in PARTIES for key in keys_of(party) if not key.description.endswith(".")] == []


@pytest.mark.parametrize("variable", [*HISTORIC, *OTHER_VARIABLES])
def test_each_other_variable_is_explained(variable: str) -> None:
    assert f"`{variable}`" in SETTINGS_PAGE


def test_the_documented_files_load_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(documented_file("node"))
    (tmp_path / "researcher.toml").write_text(documented_file("researcher"))

    node = load_node(tmp_path, {})
    researcher = load_researcher(tmp_path / "researcher.toml", {"FEDMON_RESEARCHER_FOLDER": str(tmp_path)})

    assert node.id == "hospital-north"
    assert checked_id(researcher.id, what="id") == researcher.id


@pytest.mark.parametrize("party", PARTIES)
def test_the_documented_files_load_with_every_key_set(party: Party, tmp_path: Path) -> None:
    text = re.sub(r'^# (\w+ = |"breast)', r"\1", documented_file(party), flags=re.MULTILINE)
    text = text.replace('"mqtt://', '"mqtts://')
    (tmp_path / f"{party}.toml").write_text(text)
    places = {(section, name) for section, values in tomllib.loads(text).items() for name in values}

    if party == "node":
        load_node(tmp_path, {})
    else:
        load_researcher(tmp_path / "researcher.toml", {})

    assert places == {(key.section, key.name) for key in keys_of(party)}
