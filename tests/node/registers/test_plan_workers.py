"""The code of a plan is read beside the router, within limits, and every way to fail becomes a problem's text."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.node.collectors.job.family import descendants
from fedmon.node.registers.plan_source import PlanStore
from fedmon.node.registers.plan_workers import PlanChecker
from fedmon.node.registers.plans import CodeCheck
from tests.support.waiting import wait_until

Verdicts = queue.Queue[tuple[str, CodeCheck]]
TOO_MUCH = {
    "could not be read within 5 s of processor time",
    "the code is too large or too deeply nested to be read within 512 MB",
}
BOMB = b"x = [1, 'text', {1: 2}, lambda y: y + 1]\n" * 300_000

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


@pytest.fixture
def verdicts() -> Verdicts:
    return queue.Queue()


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(tmp_path / "plans")


@contextlib.contextmanager
def _checking(read: Callable[[str], bytes], verdicts: Verdicts, **options: Any) -> Iterator[PlanChecker]:
    checker = PlanChecker(read, lambda sha256, verdict: verdicts.put((sha256, verdict)), **options)
    checker.start()
    try:
        yield checker
    finally:
        checker.stop()


@pytest.fixture
def checker(store: PlanStore, verdicts: Verdicts) -> Iterator[PlanChecker]:
    with _checking(store.read, verdicts) as running:
        yield running


def _checked(source: bytes, store: PlanStore, checker: PlanChecker, verdicts: Verdicts) -> CodeCheck:
    digest = store.write(source)
    assert checker.submit(digest)
    name, verdict = verdicts.get(timeout=60)
    assert name == digest
    return verdict


def test_layout_comments_and_object_do_not_count_while_code_does(
    store: PlanStore, checker: PlanChecker, verdicts: Verdicts
) -> None:
    sources = [
        b"class A(object):\n    def f(self):\n        return 1\n",
        b"class A:  # the plan\n  def f(self):\n\n    return 1",
        b"class A:\n    def f(self):\n        return 2\n",
    ]

    first, second, third = [_checked(source, store, checker, verdicts) for source in sources]

    assert first == second
    assert first.problem == ""
    assert first.minified_sha256 == hashlib.sha256(b"class A:\n\tdef f(self):return 1").hexdigest()
    assert third.minified_sha256 not in {None, first.minified_sha256}


@pytest.mark.parametrize("name", PROBLEMS)
def test_code_that_cannot_be_read_is_a_problem_in_words(
    name: str, store: PlanStore, checker: PlanChecker, verdicts: Verdicts
) -> None:
    source, words = PROBLEMS[name]

    verdict = _checked(source, store, checker, verdicts)

    if name == "nested calls":
        assert verdict.problem == "" or "too many nested" in verdict.problem
    else:
        assert verdict.minified_sha256 is None
        assert words in verdict.problem
        assert verdict.problem
        assert verdict.problem.isprintable()
        assert not verdict.parses or "could not be read" in verdict.problem


def test_python_whose_minified_form_takes_too_much_still_parses(
    store: PlanStore, checker: PlanChecker, verdicts: Verdicts
) -> None:
    verdict = _checked(b"a" + b".b" * 600, store, checker, verdicts)

    assert verdict == CodeCheck(problem="the code is nested too deeply to be read", parses=True)


def test_a_plan_that_takes_too_long_ends_in_a_problem(store: PlanStore, verdicts: Verdicts) -> None:
    with _checking(store.read, verdicts, timeout_s=0.5) as checker:
        verdict = _checked(BOMB, store, checker, verdicts)

    assert verdict.problem == "could not be read within 0.5 s"


def test_a_plan_that_takes_too_much_ends_in_a_problem_and_the_next_is_checked(
    store: PlanStore, checker: PlanChecker, verdicts: Verdicts
) -> None:
    first = _checked(BOMB, store, checker, verdicts)
    second = _checked(b"x = 1\n", store, checker, verdicts)

    assert first.problem in {"could not be read within 15 s", *TOO_MUCH}
    assert second.problem == ""


def test_a_reader_that_is_killed_with_its_control_group_is_no_fault_of_the_plan(
    store: PlanStore, verdicts: Verdicts
) -> None:
    with _checking(store.read, verdicts, timeout_s=3.0) as checker:
        digest = store.write(BOMB)
        checker.submit(digest)
        readers = wait_until(lambda: [each.pid for each in descendants(os.getpid()) if _is_reader(each.pid)])

        with contextlib.suppress(ProcessLookupError):  # its 3 s may be over
            os.kill(readers[0], signal.SIGTERM)

        assert verdicts.get(timeout=60)[1].problem in {"could not be read within 3 s", *TOO_MUCH}


def _is_reader(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"plan_check.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_stopping_does_not_wait_for_a_slow_check(store: PlanStore, verdicts: Verdicts) -> None:
    plans = [store.write(BOMB + b"\ny = %d" % number) for number in range(5)]
    checker = PlanChecker(store.read, lambda sha256, verdict: verdicts.put((sha256, verdict)))
    checker.start()
    for plan in plans:
        checker.submit(plan)
    start = time.monotonic()

    checker.stop()

    assert time.monotonic() - start < 10
    assert verdicts.empty()


def test_the_check_sees_nothing_of_the_node(store: PlanStore, checker: PlanChecker, verdicts: Verdicts) -> None:
    trap = store.folder.parent / "ran"
    source = f"import os\nos.mkdir({str(trap)!r})\n".encode()

    verdict = _checked(source, store, checker, verdicts)

    assert verdict.problem == ""
    assert not trap.exists()
