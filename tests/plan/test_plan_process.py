"""Plans in a real process of their own: each way to end has its name, its reason and its exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedmon.node.runs.order import GivenDataset
from fedmon.plan.parcels import pack
from tests.plan.trials import LIMITS, run_body, run_source

HEAD = "from fedmon import TrainingPlan\n"
NO_OP = HEAD + "class Plan(TrainingPlan):\n    def run(self, context):\n        return {}\n"


def test_a_plan_that_does_nothing_returns_nothing_and_ends_well() -> None:
    ran = run_source(NO_OP)

    assert ran.said == ("succeeded", "")
    assert ran.ending.exit_code == 0
    assert ran.values() == {}
    assert ran.ending.result_format == "json"


def test_what_the_researcher_gave_is_there_and_comes_back() -> None:
    body = """
        assert context.dataset is None and context.job_id and context.node_id
        return {"got": context.arguments, "inputs": context.inputs, "type": type(context.inputs).__name__}
    """
    arguments = {"rate": 0.5, "names": ["ä", "\\", '"\n', "😀"], "deep": {"none": None, "big": 2**63}}

    ran = run_body(body, arguments=arguments, inputs=b'{"a":[1,true]}', inputs_format="json")

    assert ran.values() == {"got": arguments, "inputs": {"a": [1, True]}, "type": "dict"}


def test_arrays_come_in_without_a_copy_can_be_written_to_and_go_back() -> None:
    import io

    stream = io.BytesIO()
    pack({"w": np.arange(6.0).reshape(2, 3), "n": {"b": np.array([True, False])}}).write(stream)
    body = """
        w = context.inputs["w"]
        assert not w.flags.owndata
        w += 1
        return {"w": w, "b": ~context.inputs["n"]["b"]}
    """

    values = run_body(body, inputs=stream.getvalue(), inputs_format="npz").values()

    assert values["w"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert values["b"].tolist() == [False, True]


def test_scalars_and_logs_come_in_order_and_not_a_number_is_null_with_one_warning() -> None:
    body = """
        import numpy as np
        context.report(step=1, loss=float("nan"), accuracy=np.float32(0.5))
        context.report(np.int64(2), loss=float("inf"), n=np.array(3), none=None)
        context.log("x" * 5000, level="warning")
        return {}
    """

    ran = run_body(body)

    assert [(each.step, each.values) for each in ran.scalars] == [
        (1, {"loss": None, "accuracy": 0.5}),
        (2, {"loss": None, "n": 3.0, "none": None}),
    ]
    assert [each.level for each in ran.logs] == ["WARNING", "WARNING"]
    assert ran.logs[0].message == "loss was reported as nan, and is sent as null"
    assert len(ran.logs[1].message) == 4096


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("context.report(**{'a b': 1})", "'a b'"),
        ("context.report(**{'é': 1})", "'é'"),
        (f"context.report(**{{'{'n' * 65}': 1}})", "at most 64"),
        ("context.report(loss='low')", "a str as loss"),
        ("context.report(loss=10**400)", "beyond every float"),
        ("context.report(step=1.5, loss=1)", "step '1.5'"),
        ("context.report(**{f'n{i}': i for i in range(101)})", "101 names"),
        ("context.log('x', level='LOUD')", "'LOUD'"),
    ],
)
def test_what_cannot_be_reported_is_an_error_at_that_line(call: str, error: str) -> None:
    ran = run_body(call + "\nreturn {}")

    assert ran.said == ("failed", "the plan raised InvalidInputError (line 4)")
    assert ran.ending.problem is not None
    assert error in str(ran.ending.problem.message)
    assert not ran.scalars


def test_threads_that_report_at_once_send_whole_frames() -> None:
    body = """
        import threading
        threads = [threading.Thread(target=lambda: [context.report(step=i, n=i) for i in range(300)]) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        return {"n": 1}
    """

    ran = run_body(body)

    assert ran.said == ("succeeded", "")
    assert len(ran.scalars) == 2400


def test_a_thread_that_never_ends_does_not_keep_a_plan_that_returned() -> None:
    body = """
        import threading
        threading.Thread(target=threading.Event().wait).start()
        return {"n": 1}
    """

    assert run_body(body).values() == {"n": 1}


def test_what_a_plan_prints_and_its_children_do_is_no_frame() -> None:
    body = r"""
        import os, subprocess, sys
        print("S\0\0\0\0\0\0\0\5hello", flush=True)
        look = "import os; print([n for n in os.listdir('/proc/self/fd') if n in ('3', '4', '5', '6')])"
        # One descriptor is that of the listing itself, and the first that is free.
        held = subprocess.run([sys.executable, "-I", "-S", "-c", look], capture_output=True, text=True)
        child = os.fork()
        if child == 0:
            try:
                context.report(n=1)
            except Exception as error:
                os._exit(7 if type(error).__name__ == "ChannelClosedError" else 8)
            os._exit(9)
        return {"held": held.stdout.strip(), "child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
    """

    ran = run_body(body)

    assert ran.values() == {"held": "['3']", "child": 7}
    assert ran.scalars == []


def test_a_child_that_comes_back_from_run_sends_no_second_result() -> None:
    ran = run_body("import os\nchild = os.fork()\nif child: os.waitpid(child, 0)\nreturn {'is_child': child == 0}")

    assert ran.values() == {"is_child": False}


def test_a_plan_that_closes_every_descriptor_writes_no_frame_into_its_own_files(tmp_path: Path) -> None:
    body = f"""
        import os
        os.closerange(3, 64)
        files = [open({str(tmp_path)!r} + f"/{{n}}", "wb") for n in range(8)]
        try:
            context.report(n=1)
        finally:
            for file in files: file.close()
        return {{}}
    """

    ran = run_body(body)

    assert ran.said == ("failed", "the plan's process ended with exit code 1 before it had a result")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b""] * 8


@pytest.mark.parametrize(
    ("ends", "exit_code", "reason"),
    [
        ("import sys; sys.exit(3)", 3, "the plan ended itself with exit code 3 before it had a result (line 4)"),
        ("import sys; sys.exit()", 1, "the plan ended itself with exit code 0 before it had a result (line 4)"),
        ("raise SystemExit('why')", 1, "the plan ended itself with exit code 1 before it had a result (line 4)"),
        ("import os; os._exit(5)", 5, "the plan's process ended with exit code 5 before it had a result"),
        ("import os; os.kill(os.getpid(), 11)", -11, "the plan's process ended by signal 11 before it had a result"),
        ("raise KeyboardInterrupt", 1, "the plan raised KeyboardInterrupt (line 4)"),
        ("context.dataset.rows()", 1, "the plan raised AttributeError (line 4); this job has no dataset"),
    ],
)
def test_a_plan_that_ends_itself_is_told_by_how(ends: str, exit_code: int, reason: str) -> None:
    ran = run_body(ends)

    assert ran.said == ("failed", reason)
    assert ran.ending.exit_code == exit_code


def test_an_error_has_its_type_its_text_and_the_plans_own_lines_and_the_reason_has_no_text() -> None:
    ran = run_body(
        """
        def inner(row):
            raise ValueError(f"cannot read {row}")  # the line
        inner("Jane, 41")
        """,
        name="mean",
    )

    problem = ran.ending.problem
    assert ran.said == ("failed", "the plan raised ValueError (line 5)")
    assert problem is not None
    assert problem.type == "ValueError"
    assert problem.message == "cannot read Jane, 41"
    text = str(problem.traceback)
    assert text.startswith(
        'Traceback (most recent call last):\n  File "mean.py", line 6, in run\n    inner("Jane, 41")\n'
    )
    assert 'raise ValueError(f"cannot read {row}")  # the line' in text
    assert "process.py" not in text


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError('x' * 10_000_000)",
        "def f(): f()\nf()",
        "class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E",
        "raise type('E' * 9999, (Exception,), {})('\\ud800')",
        "raise ExceptionGroup('g', [ValueError(str(i)) for i in range(500)])",
    ],
)
def test_errors_of_every_size_and_kind_are_told_in_bounded_words(body: str) -> None:
    problem = run_body(body).ending.problem

    assert problem is not None
    assert len(problem.type) <= 256
    assert len(str(problem.message)) <= 4096
    assert len(str(problem.traceback)) <= 16_384
    assert "Traceback" in str(problem.traceback)


def test_memory_that_runs_out_is_a_limit_and_no_silence() -> None:
    ran = run_body(
        "x = [bytearray(2**20) for _ in range(10**6)]", limits=msgspec.structs.replace(LIMITS, memory_bytes=2**28)
    )

    assert ran.said == ("memory-limit", "it needed more than 268435456 bytes of memory")


def test_a_plan_that_never_ends_meets_its_limits() -> None:
    busy = run_body("while True: pass", limits=msgspec.structs.replace(LIMITS, cpu_s=1))
    idle = run_body("import signal\nsignal.pause()", limits=msgspec.structs.replace(LIMITS, wall_s=0.3))

    assert busy.said == ("cpu-limit", "it took its 1 s of CPU time")
    assert idle.said == ("wall-limit", "it was not over after 0.3 s")


def test_a_missing_package_is_named_with_whose_choice_it_is() -> None:
    ran = run_source("import no_such_package.inner\n" + NO_OP)

    assert ran.ending.state.value == "failed"
    assert ran.ending.reason.startswith("the plan needs no_such_package (line 1), which the Python 3.")
    assert ran.ending.reason.endswith("is the owner's choice, by `[runs] python`")


def test_of_fedmon_only_what_a_plan_needs_is_there() -> None:
    ran = run_body("from fedmon import Federation")

    assert ran.said == (
        "failed",
        "the plan imports fedmon.researcher (line 4): of fedmon, only TrainingPlan is there while a plan runs",
    )


PLANS = {
    "x = 1\n": "the plan has no class that derives from fedmon.TrainingPlan; it has no class of its own",
    "class A: pass\n": "the plan has no class that derives from fedmon.TrainingPlan; it has A",
    HEAD
    + "P = TrainingPlan\n": "the plan has no class that derives from fedmon.TrainingPlan; it has no class of its own",
    NO_OP + "class Other(TrainingPlan):\n    def run(self, c): return {}\n": (
        "the plan has 2 classes that derive from TrainingPlan, and one is needed: Plan, Other"
    ),
    HEAD + "class A(TrainingPlan): pass\n": "the plan's class A has no method run(self, context)",
    NO_OP.replace("def run", "def __init__(self, x): pass\n    def run"): (
        "Plan() raised TypeError: a plan is made without arguments"
    ),
    NO_OP.replace("def run(self, context)", "def run(self)"): "the plan raised TypeError",
    NO_OP + "1 / 0\n": "the plan raised ZeroDivisionError as it was loaded (line 5)",
    "x = (\n": "the plan is no Python: '(' was never closed (line 1)",
    "x = " + "(" * 500 + ")" * 500 + "\n": "the plan is no Python: too many nested parentheses (line 1)",
}


@pytest.mark.parametrize("source", PLANS)
def test_what_is_no_plan_is_told_by_what_it_is(source: str) -> None:
    assert run_source(source).said == ("failed", PLANS[source])


def test_a_class_that_another_of_the_file_derives_from_and_a_second_name_do_not_count() -> None:
    ran = run_source(NO_OP + "class Real(Plan):\n    def run(self, context): return {'n': 2}\nAgain = Real\n")

    assert ran.values() == {"n": 2}


RETURNED = {
    "None": "run() returned None instead of a mapping of names to values",
    "5": "run() returned a value of type int instead of a mapping of names to values",
    "[('a', 1)]": "run() returned a value of type list instead of a mapping of names to values",
    "self": (
        "run() returned an instance of Plan (JSON values and numpy arrays travel) "
        "instead of a mapping of names to values"
    ),
    "{'a': float('nan')}": "the result: a: nan, which JSON has not (send None, or an array)",
    "{'p': {'q': self}}": "the result: p.q: an instance of Plan (JSON values and numpy arrays travel)",
    "{'model': {'w': __import__('numpy').array([None])}}": (
        "the result: model.w: an array of objects (give it a type, such as .astype(float))"
    ),
}


@pytest.mark.parametrize("returned", RETURNED)
def test_what_cannot_travel_is_an_invalid_result_that_names_the_place(returned: str) -> None:
    ran = run_body(f"return {returned}")

    assert ran.said == ("invalid-result", RETURNED[returned])
    assert ran.ending.exit_code == 1


def test_a_plan_that_cannot_be_awaited_for_is_told_so() -> None:
    ran = run_source(NO_OP.replace("def run", "async def run"))

    assert ran.said == (
        "invalid-result",
        "run() returned a value of type coroutine instead of a mapping of names to values",
    )


@pytest.mark.parametrize("returned", ["{'x': 'a' * 10**8}", "{'x': __import__('numpy').zeros(10**8)}"])
def test_a_result_that_is_too_large_is_never_sent(returned: str) -> None:
    ran = run_body(f"return {returned}")

    assert ran.said == (
        "output-limit",
        f"the result has more than {LIMITS.output_bytes} bytes, which is what this job may return",
    )


def test_a_table_is_read_by_rows_and_by_columns(tmp_path: Path) -> None:
    path = tmp_path / "patients.csv"
    path.write_text("age; sex ;smokes;note\n40;f;True;a\n;m;False;\n\n50.5;f;True;7\n", encoding="utf-8-sig")
    dataset = GivenDataset(
        dataset_id="d1", name="patients", data_type="csv", path=str(path), tags=["x"], shape=[3, 4], dtypes={"age": "f"}
    )
    body = """
        d = context.dataset
        c = d.columns()
        return {
            "rows": list(d.rows()), "kinds": {k: v.dtype.kind for k, v in c.items()}, "age": c["age"], "sex": c["sex"],
            "smokes": c["smokes"], "note": c["note"],
            "about": [d.dataset_id, d.name, d.data_type, d.tags, d.shape, str(d.path)],
        }
    """

    values = run_body(body, dataset=dataset).values()

    assert values["rows"][1] == {"age": "", "sex": "m", "smokes": "False", "note": ""}
    assert values["kinds"] == {"age": "f", "sex": "U", "smokes": "b", "note": "U"}
    assert np.array_equal(values["age"], [40, np.nan, 50.5], equal_nan=True)
    assert values["sex"].tolist() == ["f", "m", "f"]
    assert values["smokes"].tolist() == [True, False, True]
    assert values["note"].tolist() == ["a", "", "7"]
    assert values["about"] == ["d1", "patients", "csv", ["x"], [3, 4], str(path)]


def test_the_class_in_a_process_can_show_its_own_source() -> None:
    ran = run_body("import inspect\nreturn {'is': 'return {' in inspect.getsource(type(self))}")

    assert ran.values() == {"is": True}


def test_nothing_is_imported_that_a_plan_does_not_use() -> None:
    loaded = set(run_body("import sys\nreturn {'m': sorted(sys.modules)}").values()["m"])

    assert (
        loaded & {"json", "re", "typing", "os", "site", "numpy", "inspect", "pathlib", "traceback", "threading"}
        == set()
    )


def test_the_environment_of_a_trial_is_not_ours() -> None:
    os.environ["FEDMON_TEST_SECRET"] = "canary"
    try:
        ran = run_body("import os\nreturn dict(os.environ)")
    finally:
        del os.environ["FEDMON_TEST_SECRET"]

    assert "canary" not in json.dumps(ran.values())
