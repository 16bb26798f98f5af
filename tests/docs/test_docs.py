"""The documentation promises nothing that is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from tests.docs import commands, experiment_files, metrics_page, settings_page
from tests.docs.pages import PAGES, ROOT

LINKED = [*PAGES, ROOT / "CHANGELOG.md"]


def test_every_link_of_a_page_leads_somewhere() -> None:
    links = [(page, link) for page in LINKED for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())]

    assert [(page, link) for page, link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_every_file_that_a_page_names_exists() -> None:
    path = re.compile(r"`((?:fedmon|broker|envs|docs|tests|bench)/[\w./-]+)`")
    named = [(page, name) for page in LINKED for name in path.findall(page.read_text())]

    assert [(page, name) for page, name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("module", [commands, experiment_files, metrics_page, settings_page])
def test_a_page_that_is_made_is_in_step_with_what_it_is_made_from(module: ModuleType) -> None:
    name = module.__name__.rpartition(".")[2].removesuffix("_page").replace("_", "-")

    assert (ROOT / f"docs/{name}.md").read_text() == module.page(), f"run what the head of {module.__file__} says"


def test_the_page_of_files_of_experiments_lists_every_type() -> None:
    from fedmon.experiment.factory import ResourceFactory

    # Another test of this process may have registered types of its own.
    ours = {rtype for rtype in ResourceFactory.resource_types() if rtype.startswith(("fedmon::", "local::"))}
    assert ours <= set(re.findall(r"^### `(.+)`$", experiment_files.page(), re.MULTILINE))


def test_the_page_of_files_of_experiments_lists_every_key_and_form() -> None:
    from fedmon.experiment.document.conditions import condition_from
    from fedmon.experiment.document.description import Description, ResourceDescription

    text = (ROOT / "docs/experiment-files.md").read_text()
    keys = {name for row in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    fields = [*msgspec.structs.fields(Description), *msgspec.structs.fields(ResourceDescription)]
    assert {name for field in fields for name in field.encode_name.split(", ") if name[0] != "["} <= keys
    forms = [form for form in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE) if " " in form]
    assert len(forms) == 6
    for number, form in enumerate(forms):
        condition_from(form, {"train": 1, "a": 2, "b": 3, "c": 4, "watch": 5}, number=number)


def test_the_page_of_clusters_names_settings_that_their_files_have() -> None:
    page = (ROOT / "docs/howtos/broker-clusters.md").read_text()
    files = [path.read_text() for path in (ROOT / "broker").rglob("*.conf")]

    named = re.findall(r"`([a-z]+[_.][a-z_.]+(?: = |: | )[\w\"]+)`", page)
    assert len(named) >= 6
    assert [setting for setting in named if not any(setting in text for text in files)] == []


def test_every_number_of_the_page_on_scaling_stands_in_the_results() -> None:
    page, results = (ROOT / "docs/howtos/scaling.md").read_text(), (ROOT / "bench/RESULTS.md").read_text()
    text = re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", "", page, flags=re.DOTALL)
    number = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
    rows = [line for line in page.splitlines() if line.startswith("|")]

    assert set(number.findall(text)) - set(number.findall(results)) == set()
    assert [row for row in rows if row not in results.splitlines()] == []
    assert len(page.splitlines()) <= 150


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_it_ran_from_top_to_bottom(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}

    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert kinds
    assert "error" not in kinds


def test_the_plan_that_a_notebook_shows_is_the_one_that_it_runs() -> None:
    cells = json.loads((ROOT / "docs/examples/federated_mean.ipynb").read_text())["cells"]
    (shown,) = [cell["outputs"] for cell in cells if cell["source"] == ["print(PLAN.read_text())"]]

    assert "".join(shown[0]["text"]) == (ROOT / "docs/examples/plans/mean_plan.py").read_text() + "\n"
