"""The `fedmon` command itself: fast, one line for an error, an exit code for everything."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fedmon import __version__
from fedmon.cli import EXIT_CODES, TREE, VERBS, overview
from fedmon.completion import commands
from fedmon.experiment.events import Became, Registered
from fedmon.experiment.journal import NAME, Journal
from fedmon.experiment.states import ResourceState
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, fedmon, plain_environment, write_node_folder
from tests.support.requirements import require
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
    assert all(f"\n{heading}:\n" in done.stdout for heading in TREE)
    assert "\n  plan check|request|status  " in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"), [(["--version"], 0, f"fedmon {__version__}\n"), ([], 2, overview())]
)
def test_the_version_is_told_and_no_verb_at_all_is_a_usage_error(words: list[str], code: int, said: str) -> None:
    done = fedmon(*words)

    assert (done.returncode, done.stdout) == (code, said)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("nod", "'nod'; did you mean 'node'?"),
        ("nodez", "did you mean 'nodes'?"),
        ("plan requst", "no verb 'plan requst'; did you mean 'request'?"),
        ("runs zzzz", "`fedmon runs --help` lists"),
        ("zzzz", "`fedmon --help` lists"),
        ("\x1b[31m", "\\x1b[31m"),
    ],
)
def test_an_unknown_verb_is_one_line_with_a_hint(word: str, hint: str) -> None:
    done = fedmon(*word.split(" "))

    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_path_may_begin_with_a_home_also_behind_an_equals_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    found = fedmon("broker", "user", "list", "--data-dir=~/broker", "--json")
    refused = [
        fedmon(*words).stderr
        for words in (("node", "init", "--dir", "~nobody-at-all/n"), ("experiment", "show", "~nobody-at-all/run"))
    ]

    assert json.loads(found.stdout)["data_dir"] == f"{tmp_path}/broker"
    assert [line.startswith("fedmon: ~nobody-at-all/") for line in refused] == [True, True]


def test_a_folder_that_its_user_may_not_read_is_refused_by_the_name_of_its_option(tmp_path: Path) -> None:
    require(os.geteuid() == 0, "only root can drop its rights")
    os.setreuid(65534, -1)
    try:
        refused = fedmon_here("doctor", "--dir", tmp_path)
    finally:
        os.setreuid(0, -1)

    assert (refused.returncode, "'--dir'" in refused.stderr, "not readable" in refused.stderr) == (2, True, True)


LINES = [line.removeprefix("fedmon ") for line in commands()]


@pytest.mark.parametrize("line", LINES)
def test_each_verb_takes_json_and_explains_itself_in_three_ways(line: str) -> None:
    ways = [(*line.split(), "--help"), (*line.split(), "-h"), ("help", *line.split())]
    asked = [fedmon_here(*words) for words in ways]

    assert [(done.returncode, done.stderr) for done in asked] == [(0, "")] * 3
    assert len({done.stdout for done in asked}) == 1
    assert f"Usage: fedmon {line} " in asked[0].stdout
    assert not any(f"<{name}" in asked[0].stdout for name in ("str", "int>", "int range", "float"))
    assert "-h, --help" in asked[0].stdout
    assert "  --json " in asked[0].stdout or "COMMAND [ARGS]" in asked[0].stdout
    listed = asked[0].stdout.partition("\nCommands:\n")[2].splitlines()
    assert [each for each in listed if each.endswith("...") and line.startswith("node")] == [], "cut at 80 columns"


def test_exit_codes_are_one_table() -> None:
    done = fedmon("help", "exit-codes")

    assert done.returncode == 0
    assert [f"  {code:<3}  {meaning}" in done.stdout for code, meaning in EXIT_CODES.items()] == [True] * len(
        EXIT_CODES
    )


def test_a_help_loads_nothing_that_only_its_verb_needs() -> None:
    heavy = [
        "fedmon.researcher.federation",
        "paho",
        "requests",
        "psutil",
        "pandas",
        "matplotlib",
        "fedmon.experiment.engine",
    ]
    code = (
        "import sys\nfrom fedmon.cli import main\ntry:\n main(sys.argv[1:])\nfinally:\n"
        f" print(*set({heavy!r}) & set(sys.modules), file=sys.stderr)"
    )
    lines = [line for line in LINES if " " not in line]

    loaded = {
        line: subprocess.run(
            [sys.executable, "-c", code, line, "--help"], capture_output=True, text=True, check=True
        ).stderr
        for line in lines
    }

    assert {line: names for line, names in loaded.items() if names != "\n"} == {}


@pytest.mark.parametrize("name", [*VERBS])
def test_a_wrong_option_is_a_usage_error(name: str) -> None:
    done = fedmon_here(name, "--no-such-option")

    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_reader_who_has_enough_ends_a_verb_without_an_error(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "west", url=mosquitto.url)
    environ = plain_environment(FEDMON_BROKER_URL=mosquitto.url)
    lines = ["--help", "node --help", "nodes", "ping --json", "watch --json", f"node audit show --dir {folder}"]

    def ended(line: str) -> tuple[int, str]:
        command = ["bash", "-c", f"{sys.executable} -m fedmon {line} | true; exit ${{PIPESTATUS[0]}}"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    with NodeProcess(folder):
        assert {line: ended(line) for line in lines} == dict.fromkeys(lines, (0, ""))


def test_a_word_that_is_not_utf8_is_one_error_where_only_text_will_do(mosquitto: Broker, tmp_path: Path) -> None:
    environ = plain_environment(FEDMON_RESEARCHER_FOLDER=str(tmp_path), FEDMON_BROKER_URL=mosquitto.url)

    done = fedmon("datasets", os.fsdecode(b"tag\xff"), "--timeout", "60", environ=environ)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fedmon: 'tag\\udcff' is not UTF-8 text\n"


def test_an_error_of_ours_is_one_line_or_one_document_and_its_exit_code(tmp_path: Path) -> None:
    environ = plain_environment(FEDMON_RESEARCHER_FOLDER=str(tmp_path), FEDMON_BROKER_URL="http://nowhere")

    plain, document = fedmon("ping", environ=environ), fedmon("ping", "--json", environ=environ)

    error = json.loads(document.stdout)["error"]
    assert (plain.returncode, plain.stdout, plain.stderr) == (2, "", f"fedmon: {error['message']}\n")
    assert (document.returncode, document.stderr) == (2, "")
    assert (error["type"], error["exit_code"]) == ("SettingsError", 2)
    assert "mqtt://" in error["message"]


@pytest.mark.parametrize("line", ["whoami --json >&-", "whoami >&- 2>&-", "whoami --json <&- >&-"])
def test_a_stream_that_is_closed_is_as_one_to_nowhere(line: str, tmp_path: Path) -> None:
    environ = plain_environment(FEDMON_RESEARCHER_FOLDER=str(tmp_path))

    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m fedmon {line}"], env=environ, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_json_on_a_terminal_ends_in_order_if_the_reader_of_errors_has_enough(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME) as journal:
        journal.write([Registered(t=1.0, guid=1, rtype="x"), Became(t=2.0, guids=(1,), state=ResourceState.RELEASED)])
    ours, theirs = pty.openpty()
    reader, errors = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, "-m", "fedmon", "experiment", "reconnect", tmp_path, "--json"],
        stdout=theirs,
        stderr=errors,
        check=False,
    )

    for descriptor in (ours, theirs, errors):
        os.close(descriptor)
    assert done.returncode == 0


BROKEN = """
import sys, types
from fedmon import cli
module = types.ModuleType("broken")
def verb(): raise eval(sys.argv[-1])
module.verb = verb
sys.modules["broken"] = module
cli.VERBS = {"broken": cli.Verb("Breaks.", "broken:verb")}
cli.main(sys.argv[1:-1])
"""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("RuntimeError('two\\nlines')", "internal error: RuntimeError: two\\nlines (`fedmon --debug ...` shows where)"),
        ("PermissionError(13, 'Permission denied', '/root/x')", "Permission denied: /root/x"),
        ("FileNotFoundError(2, 'No usable temporary directory')", "No usable temporary directory"),
        ("TimeoutError()", "internal error: TimeoutError:  (`fedmon --debug ...` shows where)"),
    ],
)
def test_an_error_that_no_verb_expects_is_one_line_and_with_debug_shows_where(error: str, told: str) -> None:
    plain, debug = (
        subprocess.run([sys.executable, "-c", BROKEN, *words, error], capture_output=True, text=True, check=False)
        for words in (["broken"], ["--debug", "broken"])
    )

    assert plain.returncode == debug.returncode == 1
    assert plain.stderr == f"fedmon: {told}\n"
    assert "Traceback" in debug.stderr


@pytest.mark.parametrize("verb", [("whoami",), ("whoami", "--json"), ("--help",), ("no-such-verb", "--json")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_onto_a_full_disk_is_one_error(verb: tuple[str, ...], unbuffered: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedmon", *verb],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"FEDMON_RESEARCHER_FOLDER": str(tmp_path), "PYTHONUNBUFFERED": unbuffered},
        )

    assert (done.returncode, done.stderr) == (1, "fedmon: cannot write the output: No space left on device\n")
