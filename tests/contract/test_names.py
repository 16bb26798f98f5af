"""Documented imports stay, with their names and the arguments that they take."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract.names import broken, described
from tests.contract.tables import rewrite, table

ROOT = Path(__file__).parents[2]
MODULES: dict[str, tuple[str, ...]] = {
    "fedmon": (),
    "fedmon.experiment": (),
    "fedmon.report": (),
    "fedmon.report.aliases": (),
    "fedmon.report.source": ("Source",),
    "fedmon.report.views": (),
    "fedmon.researcher.experiment": (),
    "fedmon.node.collectors.plugins": (
        "Collector", "CollectorUnavailableError", "Context", "GROUP", "Instant", "Lane", "Metric", "Reading", "Roots",
        "Unit", "Why", "rows", "series",
    ),
}  # fmt: skip
"""What the documentation imports from; a module without ``__all__`` has the names that it imports."""
HOOKS = (
    "_clsinit", "_clsinit_copy", "_help", "_platform", "_register_attribute", "_register_attributes", "_register_trace",
    "_register_traces", "_remove_attribute", "_remove_trace", "_rtype",
)  # fmt: skip
"""What a resource type of one's own overrides or calls, in NEPI and here."""
HELD = {
    "fedmon.report.Source": "__enter__ close",
    "fedmon.report.source.Source": "__enter__ close",
    "fedmon.report.WideTable": "batches name schema",
    "fedmon.report.TidyTable": "batches name schema",
    "fedmon.report.views.nebula": "tables",
    "fedmon.report.views.perfmon": "tables write_json",
    "fedmon.experiment.Collector": "",
    "fedmon.experiment.HeapScheduler": "next pending remove schedule __len__",
    "fedmon.report.aliases.nebula": "tables",
    "fedmon.report.aliases.perfmon": "tables write_json",
    "fedmon.researcher.experiment.Collector": "",
    "fedmon.researcher.experiment.HeapScheduler": "next pending remove schedule __len__",
}
"""Where few names are documented of many: those, and how it is made."""
_NAMES = table("names")


def _now() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path, names in MODULES.items():
        module = importlib.import_module(path)
        public = {name: getattr(module, name) for name in names or module.__all__}
        rows = {name: _held(f"{path}.{name}", value) for name, value in public.items()}
        for name, value in public.items():
            bases = [row for row in rows if row != name and _is_above(public[row], value)]
            inherited = {row for base in bases for row in rows[base][1:]}
            found[f"{path}.{name}"] = [row for row in rows[name] if row not in inherited]
    manager = importlib.import_module("fedmon.experiment").ResourceManager
    for path in ("fedmon.experiment", "fedmon.researcher.experiment"):
        found[f"{path}.ResourceManager"] += [name for name in HOOKS if hasattr(manager, name)]
    return found


def _held(name: str, value: Any) -> list[str]:
    if isinstance(value, str | dict) or type(value).__name__ == "mappingproxy":
        return []
    only = HELD.get(name)
    rows = [(row, row.partition("(")[0]) for row in described(value)]
    return [row for row, word in rows if not word or (only is None or word in only.split())]


def _is_above(base: Any, value: Any) -> bool:
    return isinstance(base, type) and isinstance(value, type) and base in value.__mro__[1:]


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    """What documented modules offer."""
    found = _now()
    rewrite("names", found)
    return found


@pytest.mark.parametrize("name", _NAMES)
def test_a_public_name_takes_what_it_took(name: str, names: dict[str, list[str]]) -> None:
    assert name in names
    assert broken(_NAMES[name], names[name]) == []


def test_every_import_of_the_documentation_is_held_here(names: dict[str, list[str]]) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs/examples").rglob("*.py")]
    text = "\n".join(page.read_text() for page in [*pages, *(ROOT / "docs/examples").glob("*.ipynb")])
    imports = re.findall(
        r"^\s*(?:\")?from (fedmon[\w.]*) import (?:\(([^)]+)\)|(.+?))(?:\\n\",?)?$", text, re.MULTILINE
    )
    written = {(path, name.strip()) for path, *lists in imports for name in "".join(lists).split(",") if name.strip()}

    assert len(written) > 30
    assert [f"{path}.{name}" for path, name in sorted(written) if f"{path}.{name}" not in names] == []
