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


NODE, RESEARCHER = ("fedmon.node", "fedmon.node.daemon"), ("fedmon.researcher", "fedmon.researcher.federation")


@pytest.mark.parametrize(
    ("modules", "late"),
    [
        (("fedmon",), SHELL_AND_LATE),
        (NODE, SHELL_AND_LATE),
        (RESEARCHER, SHELL_AND_LATE),
        (
            ("fedmon.experiment.controller",),
            {"matplotlib", "networkx", "numpy", "paho", "pandas", "requests", "typer"},
        ),
        (("fedmon.compat.nebula",), {"fedmon.researcher", "paho", "psutil", "pynvml", "requests"}),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_importing_a_part_loads_nothing_that_is_used_later(modules: tuple[str, ...], late: set[str]) -> None:
    loaded = loaded_by(*modules)

    assert late & (loaded | {name.partition(".")[0] for name in loaded}) == set()


@pytest.mark.parametrize(
    ("modules", "others"),
    [
        (NODE, ("researcher", "broker", "demo", "node.perf")),
        (RESEARCHER, ("node", "broker", "demo")),
        (("fedmon",), ("",)),
    ],
    ids=["node", "researcher", "package"],
)
def test_a_side_loads_nothing_of_the_others(modules: tuple[str, ...], others: tuple[str, ...]) -> None:
    prefixes = tuple(f"fedmon.{name}" for name in others)

    assert {name for name in loaded_by(*modules) if name.startswith(prefixes)} == set()


def test_public_names_are_those_that_are_listed() -> None:
    import fedmon

    for name in fedmon.__all__:
        assert getattr(fedmon, name) is not None
    assert sorted(fedmon.__all__) == fedmon.__all__
    assert set(fedmon.__all__) <= set(dir(fedmon))
    with pytest.raises(AttributeError, match="nothing"):
        _ = fedmon.nothing
