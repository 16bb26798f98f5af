"""`fedmon experiment check`, `run`, `show`, `graph` and `report`: an experiment of this machine's own processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmon.common.errors import StorageError
from fedmon.experiment import ExperimentController, ResourceFactory, ResourceManager
from fedmon.experiment.check.graph import Problem
from fedmon.experiment.document.description import Description, ResourceDescription
from fedmon.experiment.document.files import write
from fedmon.experiment.journal import DOCUMENT
from tests.support.environment import plain_environment
from tests.support.ports import free_port
from tests.support.rights import as_nobody
from tests.support.shell_here import document, fedmon_here

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "experiments" / "two_steps.toml"
FEDERATED = (
    '[[resource]]\nname = "north"\ntype = "fedmon::Node"\nattributes = { nodeId = "north" }\n'
    '[[resource]]\nname = "plan"\ntype = "fedmon::TrainingPlan"\nconnect = ["north"]\n'
    'attributes = { plan = "gone.py" }\n'
)
Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Run a verb in this process and an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: fedmon_here("experiment", *words)


def process(name: str, command: list[str], *, start: str = "", more: str = "") -> str:
    return (
        f'[[resource]]\nname = "{name}"\ntype = "local::Process"\n'
        + (f'start = ["{start}"]\n' if start else "")
        + f"[resource.attributes]\ncommand = {json.dumps(command)}\n{more}\n"
    )


def written(path: str, *parts: str) -> Path:
    Path(path).write_text("".join(['[experiment]\nid = "trial"\n', *parts]))
    return Path(path).absolute()


def test_the_example_is_run_and_its_run_can_be_shown_drawn_and_reported_on(shell: Shell, tmp_path: Path) -> None:
    assert shell("check", EXAMPLE).returncode == 0
    done = shell("run", EXAMPLE, "--dir", tmp_path / "runs", "--timeout", "60")
    assert done.returncode == 0, done.stdout
    assert "STOPPED 2 count (local::Process)" in done.stdout
    assert [line for line in done.stdout.splitlines() if line.endswith(" ")] == []
    (run_dir,) = (tmp_path / "runs" / "two-steps").iterdir()
    assert (run_dir / "1.output.txt").read_text() == "1\n2\n3\n4\n5\n"

    shown = json.loads(shell("show", run_dir, "--json").stdout)
    assert (shown["well"], shown["status"], shown["counts"]) == (True, "ended", {"RELEASED": 4})
    assert [each["reached"] for each in shown["resources"]][:3] == ["STOPPED"] * 3
    assert [each["name"] for each in shown["resources"]] == ["make", "count", "beside", "results"]

    assert shell("graph", run_dir, "-o", "run.dot").returncode == 0
    assert "make\\nlocal::Process\\nSTOPPED" in Path("run.dot").read_text()

    report = shell("report", run_dir, "--output", "run.html")
    assert report.returncode == 0
    assert "1/stdout" in report.stdout
    assert "10 B" in report.stdout
    page = Path("run.html").read_text()
    assert "two-steps" in page
    assert page.count("data:image/png") == 2
    told = document(shell("report", run_dir, "--json"))
    assert told["values"]["1"]["exitCode"] == 0
    assert {"guid": 1, "path": "1/stdout", "size_bytes": 10, "collected": False} in told["traces"]
    assert {"guid": 1, "path": "1.output.txt", "size_bytes": 10, "collected": True} in told["traces"]

    assert shell("watch", run_dir).returncode == 0
    journal = (run_dir / "journal.jsonl").read_bytes()
    again = shell("reconnect", run_dir)
    assert (again.returncode, "nothing to resume" in again.stderr) == (0, True)
    assert (run_dir / "journal.jsonl").read_bytes() == journal


def test_a_critical_failure_is_told_once_with_its_reason_and_an_optional_one_is_no_failure(shell: Shell) -> None:
    bad = ["sh", "-c", "echo no column radius >&2; exit 3"]
    file = written("bad.toml", process("north", bad), process("then", ["true"], start="north is STOPPED"))
    north, then = document(shell("run", file, "--json"), code=1)["resources"]
    assert (north["reached"], north["critical"]) == ("FAILED", True)
    assert then["times"].get("STARTED") is None
    assert "exit code 3: no column radius" in north["reason"]
    (run_dir,) = Path("experiments/trial").iterdir()
    for verb in ("show", "report"):  # in lines of their own, as the columns of a terminal are narrow
        told = shell(verb, run_dir).stdout
        assert told.count("no column radius") == 1
        assert "1 north (local::Process): it ended with exit code 3: no column radius\n" in told
        lost = "start cannot be done: resource 1 (north), which is critical, failed\n"
        assert f"2 then (local::Process): {lost}" in told
    assert shell("watch", run_dir).returncode == 1

    missing = shell("run", written("missing.toml", process("no", ["no-such-program"])))
    assert missing.returncode == 1
    assert (missing.stdout + missing.stderr).count("cannot run no-such-program") == 1
    assert "Traceback" not in missing.stderr
    assert "1 of 1 over, 1 failed" in missing.stdout

    done = shell("run", written("optional.toml", process("north", bad, more="critical = false")))
    assert done.returncode == 0
    assert "failed: 1 north (local::Process), not critical: it ended" in done.stdout


def test_a_run_that_takes_too_long_is_released_and_its_blocker_named(shell: Shell) -> None:
    file = written(
        "long.toml", process("north", ["sleep", "60"]), process("late", ["true"], start="after north is STOPPED")
    )

    done = shell("run", file, "--timeout", "8")

    assert done.returncode == 6
    assert "not over within 8 s; everything was released" in done.stderr
    assert "blocker: 1 resource waits for resource 1 (north), which is STARTED: it runs" in done.stdout
    assert "RELEASED" in done.stdout.partition("blocker")[2]
    run_dir = done.stdout.partition("files: ")[2].strip()
    shown = json.loads(shell("show", run_dir, "--json").stdout)
    assert (shown["well"], shown["level_reason"]) == (False, "not over within 8 s")


def test_a_check_names_each_problem_with_its_line(shell: Shell) -> None:
    file = written(
        "wrong.toml",
        process("a", ["true"], start="after b is STOPPED"),
        process("b", ["true"], start="after a is STOPPED", more="colour = 3"),
        '[[resource]]\nname = "c"\ntype = "no::Type"\n',
        '[[resource]]\nname = "d"\ntype = "Collector"\n',
        '[[resource]]\nname = "e"\ntype = "local::Process"\nconnect = ["d"]\nattributes = { command = ["true"] }\n'
        'start = ["after d is STOPPED", "after 77 is READY"]\nset = [\n'
        '{ attribute = "grace", value = "1s", when = "after d is STOPPED" },\n'
        '{ attribute = "critical", value = false, when = "after d is STOPPED" },\n]\n',
        '[[resource]]\nname = "f"\ntype = "fedmon::Job"\nattributes = { inputsFrom = "means" }\n',
    )

    found = document(shell("check", file, "--json"), code=2)

    problems = {(one["kind"], *one["guids"]): one for one in found["problems"]}
    assert {key: one["line"] for key, one in problems.items()} == {
        ("condition-cycle", 1, 2, 1): 3,
        ("wrong-attribute", 2): 10,
        ("unknown-type", 3): 17,
        ("missing-part", 4): 20,
        ("unknown-resource", 5, 77): 23,
        ("wrong-attribute", 5): 23,
        ("not-stopped", 5, 4): 23,
        ("missing-part", 6): 33,
        ("unknown-resource", 6): 33,
    }
    assert problems["wrong-attribute", 2]["place"] == f"{file}:10"
    assert "colour" in problems["wrong-attribute", 2]["text"]
    assert "resource 3 (c)" in problems["unknown-type", 3]["text"]
    told = shell("check", file).stdout
    assert f"({file}:17)" in told
    assert "start of resource 1 (a) waits for resource 2 (b) to be STOPPED" in told
    refused = shell("run", file)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "condition-cycle" in refused.stderr
    assert f"errors in {file}; fedmon experiment check names" in shell("graph", file, "-o", "wrong.dot").stderr
    drawn = Path("wrong.dot").read_text()
    assert '4 -> 5 [label="set grace: STOPPED"' in drawn
    assert "4 -> 5 [dir=none" in drawn
    assert not Path("experiments").exists()


@pytest.mark.parametrize(
    ("part", "kind", "said"),
    [
        ('type = "Collector"\nconnect = ["n"]', "refused-connection", "cannot be connected to itself"),
        ('type = "Collector"\nguid = -3', "wrong-attribute", "guid -3 is not a positive whole number"),
        ('type = "fedmon::Monitor"\nattributes = { metrics = ["host_cpu_buzy_ratio"] }', "wrong-attribute",
         "did you mean 'host_cpu_busy_ratio'?"),
        ('type = "fedmon::Job"\nattributes = { inputsFrom = true }', "wrong-attribute", "it is of type bool"),
    ],
)  # fmt: skip
def test_a_check_tells_once_what_registering_refuses(shell: Shell, part: str, kind: str, said: str) -> None:
    found = document(shell("check", written("wrong.toml", f'[[resource]]\nname = "n"\n{part}\n'), "--json"), code=2)

    (problem,) = (one for one in found["problems"] if one["kind"] != "missing-part")
    assert (problem["kind"], problem["severity"], said in problem["text"]) == (kind, "error", True)


def test_a_check_reads_xml_and_says_why_a_file_is_no_experiment(shell: Shell) -> None:
    wrong = ResourceDescription(guid=7, rtype="local::Process", attributes={"command": ["true"], "grace": "soon"})
    file = write(Description(exp_id="trial", resources=(wrong,)), "trial.xml").absolute()
    found = json.loads(shell("check", file, "--json").stdout)
    assert found["problems"][0]["kind"] == "wrong-attribute"
    assert found["problems"][0]["line"] == found["resources"][0]["line"]

    Path("no.toml").write_text("[experiment\n")
    assert "line 1" in shell("check", "no.toml").stderr
    assert [shell("check", name).returncode for name in ("nothing.toml", "page.html")] == [3, 2]


def test_a_check_leaves_nothing_behind_and_runs_nothing(shell: Shell, tmp_path: Path) -> None:
    file = written("one.toml", process("touch", ["touch", str(tmp_path / "made")]))

    assert shell("check", file).returncode == 0
    assert shell("graph", file, "--format", "dot", "-o", "-").stdout.startswith('digraph "trial"')
    assert shell("graph", file, "--format", "dot", "-o", "-", "--json").returncode == 2
    refused = shell("graph", file, "-o", "one.pdf")
    assert (refused.returncode, "cannot be written as .pdf" in refused.stderr) == (2, True)

    assert {path.name for path in tmp_path.iterdir()} == {"one.toml"}


def test_a_run_ends_without_waiting_for_types_that_last(shell: Shell) -> None:
    collector = '[[resource]]\ntype = "Collector"\n[resource.attributes]\ntraceName = "stdout"\n'
    file = written("there.toml", collector, process("short", [sys.executable, "-c", "print(1)"]))

    told = document(shell("run", file, "--json", "--timeout", "60"))

    assert [each["reached"] for each in told["resources"]] == ["STARTED", "STOPPED"]


def test_the_example_over_the_demo_plans_two_rounds(shell: Shell) -> None:
    done = shell("check", EXAMPLE.with_name("federated_mean.toml"))

    assert done.returncode == 0, done.stdout
    assert "start 3 texture when 2 radius STOPPED" in done.stdout


def test_a_folder_without_a_run_is_refused(shell: Shell) -> None:
    refused = shell("show", "runs/trial/no")

    assert (refused.returncode, "LOCAL_DIR/EXP_ID/RUN_ID" in refused.stderr) == (3, True)


@pytest.mark.parametrize("verb", ["show", "watch", "report", "graph"])
def test_a_run_in_a_folder_of_another_user_is_named(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # the checkout may be closed to others
    fedmon_here("experiment", verb, tmp_path)  # loads what only root may read

    with as_nobody():
        refused = fedmon_here("experiment", verb, tmp_path)

    assert refused.returncode in (1, 2, 3)
    assert str(tmp_path) in refused.stderr
    assert "internal" not in refused.stderr


def test_a_run_that_was_killed_before_its_deployment_is_deployed_if_its_document_is_whole(
    shell: Shell, tmp_path: Path
) -> None:
    torn, whole, partly = (tmp_path / "trial" / name for name in ("torn", "whole", "partly"))
    with ExperimentController("own", tmp_path) as ec:
        first = ec.register_resource("local::Process", command=["true"])
        for copy in (torn, whole):
            shutil.copytree(ec.run_dir, copy)
        write(ec.describe(), whole / DOCUMENT)
        ec.register_resource("local::Process", command=["true"])
        ec.deploy(first)
        assert ec.wait_finished(first, timeout=60)
        shutil.copytree(ec.run_dir, partly)

    refused, done, rest = (
        shell("reconnect", each, "--timeout", "60", *more)
        for each, more in ((torn, []), (whole, ["--json"]), (partly, []))
    )

    assert (refused.returncode, "begin a new run" in refused.stderr) == (4, True)
    assert (done.returncode, json.loads(done.stdout)["resources"][0]["reached"]) == (0, "STOPPED")
    assert rest.stderr == ""
    assert "NEW, released" in rest.stdout


def test_a_check_looks_for_the_file_of_a_plan(shell: Shell, tmp_path: Path) -> None:
    checked = shell("check", written("federated.toml", FEDERATED))

    assert checked.returncode == 0
    assert f"missing-part: cannot read training plan '{tmp_path / 'gone.py'}'" in checked.stdout
    assert "federated.toml:7" in checked.stdout
    assert checked.stdout.splitlines()[-1] == "no errors, 1 warning"


@pytest.mark.parametrize("how", ["variable", "--broker", "--settings"])
def test_without_its_broker_nothing_of_a_federated_run_begins(shell: Shell, tmp_path: Path, how: str) -> None:
    place, marker = f"127.0.0.1:{free_port()}", tmp_path / "ran"
    Path("mine.toml").write_text(f'[broker]\nurl = "mqtt://{place}"\n')
    Path("mine.toml").chmod(0o600)
    variables = {"FEDMON_BROKER_URL": f"mqtt://{place}"} if how == "variable" else {}
    options = {"--broker": ["--broker", f"mqtt://{place}"], "--settings": ["--settings", "mine.toml"]}.get(how, [])
    environ = plain_environment(FEDMON_RESEARCHER_TIMEOUT_S="0.2", **variables)
    file = written("federated.toml", FEDERATED, process("touch", ["touch", str(marker)]))

    done = fedmon_here("experiment", "run", str(file), "--researcher", "me", *options, environ=environ)

    assert done.returncode == 5
    assert f"cannot connect to the broker at {place}" in done.stderr
    assert not marker.exists()


def test_a_check_that_asks_asks_types_of_ones_own_too(shell: Shell) -> None:
    class Wary(ResourceManager):
        _rtype = "shell::Wary"

        def foreseen(self) -> list[Problem]:
            if self.guid == 2:
                raise StorageError("the barometer is broken")
            return [Problem(kind="not-asked", severity="warning", guids=(self.guid,), text="the road is wet")]

    ResourceFactory.register_type(Wary)
    file = written("wary.toml", '[[resource]]\ntype = "shell::Wary"\n' * 2)

    asked = shell("check", file, "--ask").stdout
    assert "warning: not-asked: the road is wet" in asked
    assert "warning: not-asked: resource 2 (shell::Wary) cannot be looked at: the barometer is broken" in asked
    assert "the road is wet" not in shell("check", file).stdout
