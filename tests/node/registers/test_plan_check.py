"""The code of a plan is read beside the router, within limits, and every way to fail becomes a problem's text."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
from pathlib import Path

import pytest

from fedmon.common.errors import ConflictError
from fedmon.node.collectors.job.family import descendants
from fedmon.node.registers.grants import Declared
from fedmon.node.registers.plan_source import CodeCheck, check_source
from fedmon.node.registers.plans import PlanRecord
from tests.node.owner.owner_desks import done
from tests.node.runs.run_desks import bench, digest
from tests.support.envelopes import approval
from tests.support.node_process import NO_RUNS
from tests.support.waiting import wait_until

TOO_MUCH = {
    "could not be read within 5 s of processor time and 512 MB (ended with -24)",
    "the code is too large or too deeply nested to be read within 512 MB",
}
LINE = b"x = [1, 'text', {1: 2}, lambda y: y + 1]\n"
BOMB, LONG = LINE * 300_000, LINE * 24_000
DECLARING = b"class P(T):\n    arguments = {'a': int}\n"

PROBLEMS = {
    "not Python": (b"def f(:\n", "line 1: invalid syntax"),
    "indentation": (b"if 1:\nx\n", "line 2: expected an indented block after 'if' statement on line 1"),
    "binary": (b"\x00\x01\x02", "source code string cannot contain null bytes"),
    "not UTF-8": (b"x = '\xff'\n", "utf-8"),
    "other encoding": (b"# -*- coding: no-such -*-\n", "no-such"),
    "nested brackets": (b"(" * 100_000, "too many nested parentheses"),
    "nested calls": (b"f(" * 150 + b")" * 150, ""),
    "long chain": (b"a" + b".b" * 100_000, ""),
    "minus signs": (b"-" * 1_000_000 + b"1", ""),
    "long number": (b"x = " + b"9" * 100_000, "Exceeds the limit"),
    "control characters in the message": ("x = 1 \u202e\x1b[31m".encode(), "U+202E"),
}


def test_layout_comments_and_object_do_not_count_while_code_does() -> None:
    sources = [
        b"class A(object):\n    def f(self):\n        return 1\n",
        b"class A:  # the plan\n  def f(self):\n\n    return 1",
        b"class A:\n    def f(self):\n        return 2\n",
    ]

    first, second, third = [check_source(source) for source in sources]

    assert first == second
    assert first.problem == ""
    assert first.minified_sha256 == hashlib.sha256(b"class A:\n\tdef f(self):return 1").hexdigest()
    assert third.minified_sha256 not in {None, first.minified_sha256}


@pytest.mark.parametrize("name", PROBLEMS)
def test_code_that_cannot_be_read_is_a_problem_in_words(name: str) -> None:
    source, words = PROBLEMS[name]

    verdict = check_source(source)

    if name == "nested calls":
        assert verdict.problem == "" or "too many nested" in verdict.problem
    else:
        assert verdict.minified_sha256 is None
        assert words.lower() in verdict.problem.lower()
        assert verdict.problem
        assert verdict.problem.isprintable()
        assert not verdict.parses or "to be read" in verdict.problem or "could not be read" in verdict.problem


def test_python_whose_minified_form_takes_too_much_still_parses() -> None:
    verdict = check_source(b"a" + b".b" * 600)

    assert verdict == CodeCheck(problem="the code is nested too deeply to be read", parses=True)


def test_a_plan_that_takes_too_long_ends_in_a_problem() -> None:
    assert check_source(BOMB, timeout_s=0.5).problem == "could not be read within 0.5 s"


def test_a_plan_that_takes_too_much_ends_in_a_problem() -> None:
    assert check_source(BOMB).problem in {"could not be read within 15 s", *TOO_MUCH}


def test_a_plan_keeps_its_declarations_if_its_minified_form_takes_too_much() -> None:
    check = check_source(DECLARING + LONG, timeout_s=60)

    assert check.problem in {"", "its minified form could not be made", *TOO_MUCH}
    assert check.declared == Declared(arguments={"a": "int"})


def test_a_plan_that_cannot_be_read_at_the_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a node that cannot start the reader of a plan
    with bench(tmp_path / "n", is_ready=False, runs=NO_RUNS) as node:
        node.local.workers.start()
        plans, sha256 = node.local.registers.plans, digest(DECLARING)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
        node.ask(approval(DECLARING))
        node.wait(lambda: plans.get(sha256).problem, what="the failed check")
        with pytest.raises(ConflictError, match="could not be checked: No such file or directory: try again"):
            done(node.desk(), "plan-show", plan=sha256)

        # when it can
        monkeypatch.undo()
        shown = done(node.desk(), "plan-show", plan=sha256)
        assert plans.unchecked() == (sha256,)
        node.local.check_plan(sha256)
        node.wait(lambda: plans.get(sha256).checked, what="the check")

        # then the declarations are those of the plan
        assert shown["proposed"]["arguments"] == {"a": "int"}
        assert plans.grants.declared(sha256) == Declared(arguments={"a": "int"})
        assert plans.get(sha256).problem == ""


def test_a_reader_that_is_killed_with_its_control_group_is_no_fault_of_the_plan(tmp_path: Path) -> None:
    # given a node that reads a plan
    with bench(tmp_path / "n", is_ready=False, runs=NO_RUNS) as node:
        node.local.workers.start()
        node.local.registers.plans.register(LONG, name="long")
        node.local.check_plan(digest(LONG))
        readers = wait_until(lambda: [each.pid for each in descendants(os.getpid()) if _is_reader(each.pid)])

        # when its reader is killed
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.kill(readers[0], signal.SIGKILL)

        # then the plan is read again, as at the next start
        def found() -> PlanRecord | None:
            plan = node.local.registers.plans.get(digest(LONG))
            if plan.problem and not plan.checked:
                node.local.check_plan(digest(LONG))
            return plan if plan.checked else None

        plan = node.wait(found, what="the end of the check")
        assert plan.problem in {"", "its minified form could not be made", *TOO_MUCH}


def _is_reader(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"plan_check.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_the_check_sees_nothing_of_the_node(tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    source = f"import os\nos.mkdir({str(trap)!r})\n".encode()

    verdict = check_source(source)

    assert verdict.problem == ""
    assert not trap.exists()
