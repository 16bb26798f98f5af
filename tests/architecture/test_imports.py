"""What an import loads: a node never pays for the researcher, nobody for the shell or the web."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

SHELL_AND_LATE = {
    "typer", "rich", "click", "requests", "python_minifier", "pynvml", "tomlkit", "starlette", "uvicorn", "iotcore",
    "pandas", "pyarrow", "matplotlib", "IPython", "numpy", "persistqueue", "asyncio",
}  # fmt: skip


@functools.cache
def loaded_by(*modules: str) -> frozenset[str]:
    """Return what a fresh process has loaded after importing modules."""
    code = (
        f"import sys, json, importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return frozenset(json.loads(done.stdout))


def heads(modules: frozenset[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize(
    "modules",
    [("fedmon",), ("fedmon.node", "fedmon.node.daemon"), ("fedmon.researcher", "fedmon.researcher.federation")],
    ids=lambda modules: modules[-1],
)
def test_importing_a_side_loads_no_shell_and_nothing_that_is_used_later(modules: tuple[str, ...]) -> None:
    assert heads(loaded_by(*modules)) & SHELL_AND_LATE == set()


@pytest.mark.parametrize(
    ("module", "late"),
    [
        (
            "fedmon.experiment.controller",
            {"matplotlib", "networkx", "numpy", "paho", "pandas", "requests", "typer"},
        ),
        ("fedmon.compat.nebula", {"fedmon.researcher", "paho", "psutil", "pynvml", "requests"}),
    ],
    ids=["experiments", "reporter"],
)
def test_importing_a_part_loads_nothing_heavy(module: str, late: set[str]) -> None:
    loaded = loaded_by(module)

    assert late & (loaded | heads(loaded)) == set()


def test_a_node_loads_nothing_of_the_other_sides() -> None:
    loaded = loaded_by("fedmon.node", "fedmon.node.daemon")

    others = ("fedmon.researcher", "fedmon.broker", "fedmon.demo", "fedmon.node.perf")
    assert {name for name in loaded if name.startswith(others)} == set()


def test_a_researcher_loads_nothing_of_the_other_sides() -> None:
    loaded = loaded_by("fedmon.researcher", "fedmon.researcher.federation")

    assert {name for name in loaded if name.startswith(("fedmon.node", "fedmon.broker", "fedmon.demo"))} == set()


def test_importing_the_package_loads_nothing_of_ours_until_a_name_is_used() -> None:
    ours = {name for name in loaded_by("fedmon") if name.startswith("fedmon.")}

    assert ours == set()


def test_public_names_are_those_that_are_listed() -> None:
    import fedmon

    for name in fedmon.__all__:
        assert getattr(fedmon, name) is not None
    assert sorted(fedmon.__all__) == fedmon.__all__
    assert set(fedmon.__all__) <= set(dir(fedmon))
    with pytest.raises(AttributeError, match="nothing"):
        _ = fedmon.nothing
