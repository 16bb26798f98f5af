"""`fedmon experiment check`, `run`, `show`, `graph` and `report`: an experiment of this machine's own processes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.experiment.check.problems import Problem
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.document.description import Description, ResourceDescription
from fedmon.experiment.document.files import write
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import DOCUMENT
from fedmon.experiment.resource import ResourceManager
from tests.support.environment import plain_environment
from tests.support.ports import free_port
from tests.support.shell_here import fedmon_here

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "experiments" / "two_steps.toml"


class Done(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Shell = Callable[..., Done]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Run a verb in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Done:
        done = fedmon_here("experiment", *map(str, words))
        return Done(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


def process(name: str, command: list[str], *, start: str = "", more: str = "") -> str:
    return (
        f'[[resource]]\nname = "{name}"\ntype = "local::Process"\n'
        + (f'start = ["{start}"]\n' if start else "")
        + f"[resource.attributes]\ncommand = {json.dumps(command)}\n{more}\n"
    )


def written(path: Path, *parts: str, exp_id: str = "trial") -> Path:
    path.write_text("".join([f'[experiment]\nid = "{exp_id}"\n', *parts]))
    return path


def test_the_example_is_run_and_its_run_can_be_shown_drawn_and_reported_on(shell: Shell, tmp_path: Path) -> None:
    assert shell("check", EXAMPLE).code == 0
    done = shell("run", EXAMPLE, "--dir", tmp_path / "runs", "--timeout", "20")
    assert done.code == 0, done.out
    assert "STARTED 2 count (local::Process)" in done.out or "STOPPED 2 count (local::Process)" in done.out
    (run_dir,) = (tmp_path / "runs" / "two-steps").iterdir()
    assert (run_dir / "1.output.txt").read_text() == "1\n2\n3\n4\n5\n"

    shown = shell("show", run_dir, "--json").document
    assert (shown["well"], shown["status"], shown["counts"]) == (True, "ended", {"RELEASED": 4})
    assert [each["reached"] for each in shown["resources"]][:3] == ["STOPPED"] * 3
    assert [each["name"] for each in shown["resources"]] == ["make", "count", "beside", "results"]

    assert shell("graph", run_dir, "-o", "run.dot").code == 0
    assert "make\\nlocal::Process\\nSTOPPED" in Path("run.dot").read_text()

    report = shell("report", run_dir, "--output", "run.html")
    assert report.code == 0
    assert "1/stdout" in report.out
    assert "10 B" in report.out
    assert "+" in report.out
    page = Path("run.html").read_text()
    assert "two-steps" in page
    assert "data:image/png" in page
    document = shell("report", run_dir, "--json").document
    assert document["values"]["1"]["exitCode"] == 0
    assert {"guid": 1, "path": "1/stdout", "size_bytes": 10, "collected": False} in document["traces"]

    assert shell("watch", run_dir).code == 0
    journal = (run_dir / "journal.jsonl").read_bytes()
    again = shell("reconnect", run_dir)
    assert (again.code, "nothing is left to be taken up" in again.err) == (0, True)
    assert (run_dir / "journal.jsonl").read_bytes() == journal


def test_a_critical_failure_is_told_with_its_reason_and_an_optional_one_is_no_failure(
    shell: Shell, tmp_path: Path
) -> None:
    bad = ["sh", "-c", "echo no column radius >&2; exit 3"]
    file = written(tmp_path / "bad.toml", process("north", bad), process("then", ["true"], start="north is STOPPED"))
    done = shell("run", file, "--json")
    assert done.code == 1
    north, then = done.document["resources"]
    assert (north["reached"], north["critical"]) == ("FAILED", True)
    assert then["times"].get("STARTED") is None
    assert "exit code 3: no column radius" in north["reason"]
    (run_dir,) = Path("experiments/trial").iterdir()
    assert "1 north (local::Process): it ended with exit code 3" in shell("report", run_dir).out
    assert shell("watch", run_dir).code == 1

    optional = written(
        tmp_path / "optional.toml", process("north", bad, more="critical = false"), process("south", ["true"])
    )
    done = shell("run", optional)
    assert done.code == 0
    assert "(not critical) it ended" in done.out


def test_what_is_not_over_in_time_is_released_and_told_with_who_held_it_up(shell: Shell, tmp_path: Path) -> None:
    file = written(
        tmp_path / "long.toml",
        process("north", ["sleep", "60"]),
        process("late", ["true"], start="after north is STOPPED"),
    )

    done = shell("run", file, "--timeout", "0.3")

    assert done.code == 6
    assert "not over within 0.3 s; everything was released" in done.err
    assert "blocker: 1 resource waits for resource 1 (north), which is STARTED: it runs" in done.out
    assert "RELEASED" in done.out.partition("blocker")[2]


def test_a_check_names_each_problem_with_its_line(shell: Shell, tmp_path: Path) -> None:
    file = written(
        tmp_path / "wrong.toml",
        process("a", ["true"], start="after b is STOPPED"),
        process("b", ["true"], start="after a is STOPPED", more="colour = 3"),
        '[[resource]]\nname = "c"\ntype = "no::Type"\n',
        '[[resource]]\nname = "d"\ntype = "Collector"\n',
    )

    done = shell("check", file, "--json")

    assert done.code == 2
    problems = {one["kind"]: one for one in done.document["problems"]}
    assert {"condition-cycle", "wrong-attribute", "unknown-type", "collector-without-trace"} <= problems.keys()
    assert problems["wrong-attribute"]["place"] == f"{file}:10"
    assert "colour" in problems["wrong-attribute"]["text"]
    assert problems["unknown-type"]["line"] == 17
    assert "resource 3 (c)" in problems["unknown-type"]["text"]
    text = shell("check", file)
    assert f"({file}:17)" in text.out
    refused = shell("run", file)
    assert (refused.code, refused.out) == (2, "")
    assert "condition-cycle" in refused.err
    assert not Path("experiments").exists()


def test_a_check_names_every_connection_that_is_not_taken(shell: Shell, tmp_path: Path) -> None:
    file = written(
        tmp_path / "refused.toml",
        '[[resource]]\nname = "n"\ntype = "fedmon::Node"\nconnect = ["together", "job"]\n',
        '[[resource]]\nname = "together"\ntype = "fedmon::Aggregator"\n',
        '[[resource]]\nname = "job"\ntype = "fedmon::Job"\n',
        '[[resource]]\nname = "other"\ntype = "fedmon::Aggregator"\nconnect = ["n"]\n',
    )

    done = shell("check", file, "--json")

    assert done.code == 2
    found = [(one["kind"], one["guids"], one["line"]) for one in done.document["problems"]]
    assert [one for one in found if one[0] != "missing-part"] == [
        ("one-sided-connection", [1, 2], 3),
        ("one-sided-connection", [1, 4], 3),
    ]
    assert [one[1] for one in found if one[0] == "missing-part"] == [[1], [2], [3], [4]]


def test_a_check_reads_xml_too_and_says_what_is_no_experiment(shell: Shell, tmp_path: Path) -> None:
    wrong = ResourceDescription(guid=7, rtype="local::Process", attributes={"command": ["true"], "grace": "soon"})
    xml = write(Description(exp_id="trial", resources=(wrong,)), tmp_path / "trial.xml")
    done = shell("check", xml, "--json")
    assert done.code == 2
    assert done.document["problems"][0]["kind"] == "wrong-attribute"
    assert done.document["problems"][0]["line"] == done.document["resources"][0]["line"]

    (tmp_path / "no.toml").write_text("[experiment\n")
    assert "line 1" in shell("check", "no.toml").err
    assert shell("check", "nothing.toml").code == 3
    assert shell("check", tmp_path / "page.html").code == 2
    assert shell("show", tmp_path).code == 3


def test_a_check_leaves_nothing_behind_and_runs_nothing(shell: Shell, tmp_path: Path) -> None:
    file = written(tmp_path / "one.toml", process("touch", ["touch", str(tmp_path / "made")]))

    assert shell("check", file).code == 0
    assert shell("graph", file, "--format", "dot", "-o", "-").out.startswith('digraph "trial"')
    refused = shell("graph", file, "-o", "one.pdf")
    assert (refused.code, "cannot be written as .pdf" in refused.err) == (2, True)

    assert {path.name for path in tmp_path.iterdir()} == {"one.toml"}


def test_a_type_with_an_end_of_its_own_is_waited_for_and_one_that_only_is_there_is_not(
    shell: Shell, tmp_path: Path
) -> None:
    collector = '[[resource]]\ntype = "Collector"\n[resource.attributes]\ntraceName = "stdout"\n'
    file = written(tmp_path / "there.toml", collector, process("short", [sys.executable, "-c", "print(1)"]))

    done = shell("run", file, "--json", "--timeout", "20")

    assert (done.code, done.document["well"]) == (0, True)
    assert [each["reached"] for each in done.document["resources"]] == ["STARTED", "STOPPED"]


def test_the_example_over_the_demo_plans_two_rounds(shell: Shell) -> None:
    done = shell("check", EXAMPLE.with_name("federated_mean.toml"))

    assert done.code == 0, done.out
    assert "start 3 texture when 2 radius STOPPED" in done.out


def test_whoever_names_the_folder_of_an_experiment_is_told_of_its_latest_run(shell: Shell, tmp_path: Path) -> None:
    for run_id in ("2", "10", "20261121"):
        (tmp_path / "runs" / "trial" / run_id).mkdir(parents=True)
        (tmp_path / "runs" / "trial" / run_id / "journal.jsonl").touch()

    for folder in ("runs", "runs/trial"):
        assert f"such as {tmp_path / 'runs' / 'trial' / '20261121'}" in shell("show", folder).err
    assert "EXPERIMENT/RUN" in shell("show", "runs/trial/no").err


def test_a_failure_is_reported_once_and_without_a_traceback(shell: Shell, tmp_path: Path) -> None:
    done = shell("run", written(tmp_path / "bad.toml", process("no", ["no-such-program"])), "--timeout", "20")

    assert done.code == 1
    assert (done.out + done.err).count("cannot run no-such-program") == 1
    assert "Traceback" not in done.err
    assert "1 of 1 over, 1 failed" in done.out
    assert [line for line in done.out.splitlines() if line.endswith(" ")] == []


def test_what_was_killed_before_it_was_deployed_is_deployed_where_all_of_it_is_there(
    shell: Shell, tmp_path: Path
) -> None:
    left = tmp_path / "trial" / "left"
    with ExperimentController("own", tmp_path) as ec:
        ec.register_resource("local::Process", command=["true"])
        shutil.copytree(ec.run_dir, left)
        write(ec.describe(), left / DOCUMENT)
        shutil.copytree(ec.run_dir, tmp_path / "trial" / "torn")

    torn = shell("reconnect", tmp_path / "trial" / "torn", "--timeout", "10")
    done = shell("reconnect", left, "--timeout", "10", "--json")

    assert (torn.code, "begin a new run" in torn.err) == (4, True)
    assert (done.code, done.document["resources"][0]["reached"]) == (0, "STOPPED")


def test_nobody_waits_for_what_nobody_deploys(shell: Shell, tmp_path: Path) -> None:
    left = tmp_path / "trial" / "left"
    with ExperimentController("own", tmp_path) as ec:
        first, _ = (ec.register_resource("local::Process", command=["true"]) for _ in "12")
        ec.deploy(first)
        assert ec.wait_finished(first, timeout=10)
        shutil.copytree(ec.run_dir, left)

    done = shell("reconnect", left, "--timeout", "10")

    assert "resource 2 was never deployed, and is not waited for" in done.err
    assert "not over within" not in done.err


FEDERATED = (
    '[[resource]]\nname = "north"\ntype = "fedmon::Node"\nattributes = { nodeId = "north" }\n'
    '[[resource]]\nname = "plan"\ntype = "fedmon::TrainingPlan"\nconnect = ["north"]\n'
    'attributes = { plan = "gone.py" }\n'
)


def test_a_check_looks_for_the_file_of_a_plan(shell: Shell, tmp_path: Path) -> None:
    document = written(tmp_path / "federated.toml", FEDERATED)

    checked = shell("check", document)

    assert checked.code == 0
    assert f"missing-part: cannot read training plan '{tmp_path / 'gone.py'}'" in checked.out
    assert "federated.toml:7" in checked.out
    assert checked.out.splitlines()[-1] == "no errors, 1 warning"


@pytest.mark.parametrize("how", ["variable", "--broker", "--settings"])
def test_without_a_broker_nothing_begins_that_would_be_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    place, marker = f"127.0.0.1:{free_port()}", tmp_path / "ran"
    (tmp_path / "mine.toml").write_text(f'[broker]\nurl = "mqtt://{place}"\n')
    (tmp_path / "mine.toml").chmod(0o600)
    variables = {"FEDMON_BROKER_URL": f"mqtt://{place}"} if how == "variable" else {}
    options = {"--broker": ["--broker", f"mqtt://{place}"], "--settings": ["--settings", "mine.toml"]}.get(how, [])
    environ = plain_environment(FEDMON_RESEARCHER_TIMEOUT_S="0.2", **variables)
    document = written(tmp_path / "federated.toml", FEDERATED, process("touch", ["touch", str(marker)]))

    done = fedmon_here("experiment", "run", str(document), "--researcher", "me", *options, environ=environ)

    assert done.returncode == 5
    assert f"cannot connect to the broker at {place}" in done.stderr
    assert not marker.exists()


class Wary(ResourceManager):
    """Foresees something, and has nothing to do with a federation."""

    _rtype = "shell::Wary"

    def foreseen(self) -> list[Problem]:
        return [Problem(kind="not-asked", severity="warning", guids=(self.guid,), text="the road is wet")]


def test_a_check_that_asks_asks_types_of_ones_own_too(shell: Shell, tmp_path: Path) -> None:
    ResourceFactory.register_type(Wary)
    document = written(tmp_path / "wary.toml", '[[resource]]\ntype = "shell::Wary"\n')

    assert "the road is wet" in shell("check", document, "--ask").out
    assert "the road is wet" not in shell("check", document).out
