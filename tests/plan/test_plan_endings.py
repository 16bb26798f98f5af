"""How plans end without a result: each way has its name, its reason and its exit code."""

from __future__ import annotations

import pytest

from tests.plan.trials import HEAD, NO_OP, in_run, run_body, run_source


@pytest.mark.parametrize(
    ("ends", "kind"),
    [
        ("import sys; sys.exit(3)", "SystemExit"),
        ("import sys; sys.exit()", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("context.dataset.rows()", "AttributeError"),
        ("context.report(loss='low')", "InvalidInputError"),
        ("__import__('json').loads('')", "json.decoder.JSONDecodeError"),
    ],
)
def test_a_plan_that_raises_is_told_by_the_type_and_the_line(ends: str, kind: str) -> None:
    ran = run_body(ends)

    assert ran.said == ("failed", f"the plan raised {kind} (line 4)")
    assert ran.ending.exit_code == 1


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


def test_an_error_is_told_though_the_plan_left_no_file_to_open() -> None:
    problem = run_body("kept = []\nwhile True: kept.append(open('/dev/null'))").ending.problem

    assert problem is not None
    assert (problem.type, problem.traceback) == ("OSError", "OSError (no traceback: OSError)")


def test_a_missing_package_is_named_with_whose_choice_it_is() -> None:
    ran = run_source("import no_such_package.inner\n" + NO_OP)

    assert ran.ending.state.value == "failed"
    assert ran.ending.reason.startswith("the plan needs no_such_package (line 1), which the Python 3.")
    assert ran.ending.reason.endswith("is the owner's choice, by `[runs] python`")


NO_CLASS = "the plan needs one class that derives from fedmon.TrainingPlan, and has "
OF_FEDMON = "the plan imports {} (line 4): of fedmon, only TrainingPlan is available to a plan"
PLANS = {
    "x = 1\n": NO_CLASS + "none",
    "class A: pass\n": NO_CLASS + "none",
    HEAD + "P = TrainingPlan\n": NO_CLASS + "none",
    NO_OP + "class Other(TrainingPlan):\n    def run(self, c): return {}\n": NO_CLASS + "Plan, Other",
    HEAD + "class A(TrainingPlan): pass\n": "the plan's class A has no method run(self, context)",
    NO_OP.replace("def run", "def __init__(self, x): pass\n    def run"): (
        "Plan() raised TypeError: a plan is made without arguments"
    ),
    NO_OP.replace("def run(self, context)", "def run(self)"): "the plan raised TypeError",
    NO_OP + "1 / 0\n": "the plan raised ZeroDivisionError as it was loaded (line 5)",
    NO_OP + "class Meta(type):\n    __mro__ = 5\nclass C(TrainingPlan, metaclass=Meta): pass\n": (
        "looking for the plan's class raised TypeError"
    ),
    NO_OP + "class Lies:\n    __class__ = type\nlies = Lies()\n": "looking for the plan's class raised TypeError",
    HEAD + "class A(TrainingPlan):\n    run = 5\n": "the plan's class A has no method run(self, context)",
    NO_OP.replace("def run", "def __new__(cls): return 5\n    def run"): (
        "the plan's class Plan has no method run(self, context)"
    ),
    NO_OP + "# \0\n": "the plan is no Python: source code string cannot contain null bytes",
    # Read by who approves it as a comment, and run by Python as code if it believed the first line.
    "# coding: utf-7\n# +AAo-raise ValueError\nx = 1\n": NO_CLASS + "none",
    NO_OP + "import os\nos._exit(0)\n": (
        "the plan ended without a result: run must return, and must not end the process"
    ),
    in_run("import fedmon.plan.process\nfedmon.plan.process.pack = lambda *args, **more: 5\nreturn {}"): (
        "the plan ended in a way that could not be looked into (AttributeError)"
    ),
    in_run("from fedmon import Federation"): OF_FEDMON.format("fedmon.researcher"),
    in_run("import fedmon.node.daemon"): OF_FEDMON.format("fedmon.node"),
    "x = (\n": "the plan is no Python: '(' was never closed (line 1)",
    "x = " + "(" * 500 + ")" * 500 + "\n": "the plan is no Python: too many nested parentheses (line 1)",
}


@pytest.mark.parametrize("source", PLANS)
def test_what_is_no_plan_is_told_by_what_it_is(source: str) -> None:
    assert run_source(source).said == ("failed", PLANS[source])


def test_a_mark_at_the_beginning_changes_nothing() -> None:
    assert run_source("\ufeff" + NO_OP).values() == {}


def test_a_class_that_another_of_the_file_derives_from_and_a_second_name_do_not_count() -> None:
    ran = run_source(NO_OP + "class Real(Plan):\n    def run(self, context): return {'n': 2}\nAgain = Real\n")

    assert ran.values() == {"n": 2}


NO_MAPPING = "instead of a mapping of names to values"
RETURNED = {
    in_run("return None"): f"run() returned None {NO_MAPPING}",
    in_run("return {'p': {'q': self}}"): "the result: p.q: a value of type Plan (JSON values and numpy arrays travel)",
    NO_OP.replace("def run", "async def run"): f"run() returned a value of type coroutine {NO_MAPPING}",
    in_run("class Odd(dict):\n    def items(self): 1 / 0\nreturn Odd()"): (
        "reading the result raised ZeroDivisionError (line 5)"
    ),
}


@pytest.mark.parametrize("source", RETURNED)
def test_what_cannot_travel_is_an_invalid_result_that_names_the_place(source: str) -> None:
    ran = run_source(source)

    assert ran.said == ("invalid-result", RETURNED[source])
    assert ran.ending.exit_code == 1
