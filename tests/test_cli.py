"""The `fedmon` command itself: fast, one line for an error, an exit code for everything."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedmon import __version__
from fedmon.cli import VERBS, overview
from tests.support.node_process import fedmon, plain_environment
from tests.support.shell_here import fedmon_here

HEAVY = {"typer", "rich", "requests", "python_minifier", "paho", "psutil", "starlette", "persistqueue", "fedmon.node"}


def test_the_overview_names_every_verb_and_imports_none() -> None:
    code = (
        "import sys\nfrom fedmon.cli import main\ntry:\n main(['--help'])\nfinally:\n"
        f" print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, overview())
    assert done.stderr == "[]\n"
    assert all(f"\n  {name} " in done.stdout and verb.summary in done.stdout for name, verb in VERBS.items())


def test_the_version_is_told() -> None:
    done = fedmon("--version")

    assert (done.returncode, done.stdout) == (0, f"fedmon {__version__}\n")


def test_no_verb_at_all_shows_the_overview_as_a_usage_error() -> None:
    done = fedmon()

    assert (done.returncode, done.stdout) == (2, overview())


@pytest.mark.parametrize(
    ("word", "hint"), [("nod", "did you mean 'node'?"), ("zzzz", "`fedmon --help` lists"), ("\x1b[31m", "\\x1b[31m")]
)
def test_an_unknown_verb_is_one_line_with_a_hint(word: str, hint: str) -> None:
    done = fedmon(word)

    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_has_code_and_explains_itself(name: str) -> None:
    done = fedmon_here(name, "--help")

    assert done.returncode == 0, done.stderr
    assert f"fedmon {name}" in done.stdout
    module = importlib.import_module(VERBS[name].module)
    assert hasattr(module, "app") or hasattr(module, "run_words")


@pytest.mark.parametrize("name", [*VERBS])
def test_a_wrong_option_is_a_usage_error(name: str) -> None:
    done = fedmon_here(name, "--no-such-option")

    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_an_error_of_ours_is_one_line_and_its_exit_code(tmp_path: Path) -> None:
    environ = plain_environment(FEDMON_RESEARCHER_FOLDER=str(tmp_path), FEDMON_BROKER_URL="http://nowhere")

    done = fedmon("ping", environ=environ)

    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("fedmon: ")
    assert "mqtt://" in done.stderr


def test_with_json_an_error_of_ours_is_one_document(tmp_path: Path) -> None:
    environ = plain_environment(FEDMON_RESEARCHER_FOLDER=str(tmp_path), FEDMON_BROKER_URL="http://nowhere")

    done = fedmon("ping", "--json", environ=environ)

    error = json.loads(done.stdout)["error"]
    assert (done.returncode, done.stderr) == (2, "")
    assert (error["type"], error["exit_code"]) == ("SettingsError", 2)
    assert "mqtt://" in error["message"]


BROKEN = """
import sys, types
from fedmon import cli
module = types.ModuleType("broken")
def app(**_): raise RuntimeError("two\\nlines")
module.app = app
sys.modules["broken"] = module
cli.VERBS = {"broken": cli.Verb(module="broken", summary="Breaks.")}
cli.main(sys.argv[1:])
"""


def test_a_mistake_of_ours_is_one_line_and_with_debug_shows_where() -> None:
    plain = subprocess.run([sys.executable, "-c", BROKEN, "broken"], capture_output=True, text=True, check=False)
    debug = subprocess.run(
        [sys.executable, "-c", BROKEN, "--debug", "broken"], capture_output=True, text=True, check=False
    )

    assert plain.returncode == debug.returncode == 1
    assert plain.stderr == ("fedmon: internal error: RuntimeError: two\\nlines (`fedmon --debug ...` shows where)\n")
    assert "Traceback" in debug.stderr
