"""`fedmon plan check` as it is typed: a plan tried here, before anybody is asked."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.node.collectors.job.family import descendants
from fedmon.node.runs import cli_check
from fedmon.node.runs.sandbox import bubblewrap, landlock
from fedmon.plan.parcels import unpack
from fedmon.plan.values import arguments_of
from tests.node.runs.kept_jobs import plan_of
from tests.support.requirements import require
from tests.support.shell_here import document
from tests.support.waiting import has_ended, wait_until

PLAN = """
import numpy as np
from fedmon import TrainingPlan

class Mean(TrainingPlan):
    arguments = {"unit": str}
    scalars = ("age",)

    def run(self, context):
        age = context.dataset.columns()["age"]
        print("printed")
        context.report(step=1, age=np.nanmean(age), rows=len(age))
        context.log(f"given {context.arguments['unit']}")
        return {"n": len(age), "weights": {"w": np.zeros((2, 3))}, "inputs": context.inputs}
"""


LOUD = plan_of("""
    for _ in range(1_800):
        context.log("x" * 4_000)
    print("x" * 20_000_000)
    return {}
""")
INPUTS = json.dumps({"rate": 0.5, "names": ["radius", "texture", "perimeter", "area", "smoothness", "symmetry"]})


def check(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedmon", "plan", "check", *words], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "mean.py").write_text(PLAN)
    (tmp_path / "patients.csv").write_text("age,sex\n40,f\n,m\n50,f\n")
    (tmp_path / "inputs.json").write_text(INPUTS)
    return tmp_path / "mean.py"


def test_in_the_sandbox_a_plan_shows_what_it_reports_logs_and_returns(plan: Path) -> None:
    level = "bubblewrap" if bubblewrap.program() else "landlock"
    require(level == "bubblewrap" or landlock.abi(), "no level of confinement that hides files works on this machine")

    done = check(
        str(plan), "--dataset", str(plan.with_name("patients.csv")), "--arg", "unit=years",
        "--inputs", str(plan.with_name("inputs.json")), "--json",
    )  # fmt: skip

    said = document(done)
    assert said["ok"] is True
    assert said["sha256"] == hashlib.sha256(plan.read_bytes()).hexdigest()
    assert said["sandbox"] == level
    assert [(each["step"], each["values"]) for each in said["scalars"]] == [(1, {"age": 45.0, "rows": 3.0})]
    assert [each["message"] for each in said["logs"]] == ["given years"]
    assert [(each["name"], each["type"], each["shape"]) for each in said["result"]["values"]] == [
        ("n", "int", None),
        ("weights", "dict", None),
        ("inputs", "dict", None),
        ("weights.w", "<f8", [2, 3]),
    ]
    assert said["result"]["values"][2]["value"] == INPUTS
    assert said["usage"]["wall_s"] > 0
    assert "printed" in done.stderr
    assert [text for text in said["not_checked"] if "scalars" in text] == [
        "that nodes send rows: `scalars` does not name it, so only [release] mode auto lets it leave"
    ]


def test_without_a_sandbox_it_says_so_and_a_failure_has_its_lines_and_exit_code(plan: Path) -> None:
    done = check(str(plan), "--no-sandbox")

    assert done.returncode == 1
    assert "sandbox  none (not asked for): the plan can do here whatever you can\n" in done.stdout
    assert "ended    failed: the plan raised AttributeError (line 10)\n" in done.stdout
    assert 'File "mean.py", line 10, in run\n    age = context.dataset.columns()["age"]' in done.stderr


def test_a_long_value_is_cut_in_text_alone(plan: Path) -> None:
    plan.write_bytes(plan_of("return {'rows': list(range(1_000))}"))

    text, document = (check(str(plan), "--no-sandbox", *words).stdout for words in ((), ("--json",)))

    row = text.splitlines()[3]
    assert row.startswith("result   rows  list [1000] [0, 1, 2, ")
    assert len(row) < 1_050
    assert json.loads(json.loads(document)["result"]["values"][0]["value"]) == list(range(1_000))


def test_megabytes_of_logs_at_once_are_shown_to_the_last(plan: Path) -> None:
    plan.write_bytes(LOUD)

    done = check(str(plan), "--no-sandbox", "--json")

    assert len(json.loads(done.stdout)["logs"]) == 1_800
    assert " bytes are not kept]\n" in done.stderr


@pytest.mark.parametrize("argument", ["size=1", "unit=1"])
def test_arguments_that_the_plan_does_not_declare_are_named(plan: Path, argument: str) -> None:
    done = check(str(plan), "--no-sandbox", "--arg", argument)

    assert f"unless their owners grant it: argument '{argument.partition('=')[0]}' is" in done.stderr
    assert "ended    failed: the plan raised AttributeError" in done.stdout


@pytest.mark.parametrize(
    ("number", "words", "code"),
    [
        (signal.SIGINT, ["--no-sandbox"], 130),
        (signal.SIGINT, [], 130),
        (signal.SIGTERM, ["--no-sandbox"], 143),
        (signal.SIGHUP, ["--no-sandbox"], 129),
    ],
)
def test_an_interrupted_check_leaves_nothing_running(
    tmp_path: Path, number: signal.Signals, words: list[str], code: int
) -> None:
    # given a check whose plan runs
    plan = tmp_path / "waits.py"
    plan.write_text(
        PLAN[: PLAN.index("        age")] + "        context.report(ready=1)\n        __import__('time').sleep(60)\n"
    )
    command = ["env", f"--default-signal={number.name[3:]}"]  # whoever runs the tests may ignore it
    command += [sys.executable, "-m", "fedmon", "plan", "check", str(plan), "--dataset", str(tmp_path), *words]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True) as checking:
        assert checking.stdout is not None
        while "ready=1" not in (line := checking.stdout.readline()):
            assert line
        started = descendants(checking.pid)

        # when it is interrupted
        checking.send_signal(number)
        assert checking.wait(60) == code

    # then the plan and all else that it had started end, and no file is left
    assert len(started) >= 2
    assert list(temporary.iterdir()) == []
    wait_until(lambda: all(has_ended(each.pid) for each in started), what="the end of the plan")


def test_what_is_no_plan_file_is_told_before_anything_runs(tmp_path: Path) -> None:
    done = check(str(tmp_path / "none.py"), "--json")

    assert done.returncode == 2
    assert "cannot read training plan" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (
            ["n=1", "rate=0.5", "name=x y", "on=true", "list=[1, 2]"],
            {"n": 1, "rate": 0.5, "name": "x y", "on": True, "list": [1, 2]},
        ),
        (['{"a": {"b": null}}', "a=b=c", "nan=NaN", "empty="], {"a": "b=c", "nan": "NaN", "empty": ""}),
        (["a=1,2", "b=1],[2", "c=[1]", "d=["], {"a": "1,2", "b": "1],[2", "c": [1], "d": "["}),
        (['s="1"', 'inject=1,"x":2'], {"s": "1", "inject": '1,"x":2'}),
    ],
)
def test_arguments_are_json_or_else_texts(words: list[str], arguments: dict[str, Any]) -> None:
    assert arguments_of(words) == arguments


@pytest.mark.parametrize("word", ["novalue", "=1", "{1}", '{"a": NaN}'])
def test_words_that_are_no_arguments_are_refused(word: str) -> None:
    with pytest.raises(InvalidInputError, match="--arg"):
        arguments_of([word])


def test_inputs_are_json_or_any_file_of_plain_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=np.arange(3), b=np.ones(2))
    np.savez(tmp_path / "bad.npz", w=np.array([None]))
    (tmp_path / "bad.json").write_text("[1]")
    np.savez_compressed(tmp_path / "whole.npz", w=np.random.default_rng(0).normal(size=5000).round(2))
    content = (tmp_path / "whole.npz").read_bytes()
    for place in range(100, 2000, 50):
        (tmp_path / f"damaged-{place}.npz").write_bytes(content[:place] + b"\xff\xff\xff" + content[place + 3 :])
    damaged = sorted(path.name for path in tmp_path.glob("damaged-*.npz"))

    content, inputs_format = cli_check.inputs_at(tmp_path / "w.npz")

    assert inputs_format == "npz"
    assert {name: array.tolist() for name, array in unpack("npz", content).items()} == {"w": [0, 1, 2], "b": [1, 1]}
    for bad in ("bad.npz", "bad.json", "missing.json", *damaged):
        with pytest.raises(InvalidInputError, match=bad):
            cli_check.inputs_at(tmp_path / bad)


def test_a_table_is_measured_and_a_folder_is_given_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n")

    table, folder = cli_check.dataset_at(tmp_path / "t.csv"), cli_check.dataset_at(tmp_path)

    assert (table.data_type, table.shape, table.dtypes) == ("csv", [2, 2], {"a": "int64", "b": "object"})
    assert (folder.data_type, folder.shape, folder.path) == ("default", None, str(tmp_path))
    with pytest.raises(InvalidInputError, match="not found"):
        cli_check.dataset_at(tmp_path / "gone.csv")
