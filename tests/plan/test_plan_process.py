"""Plans in a real process of their own: what they get, what they send, and what they cannot do by accident."""

from __future__ import annotations

import sys

import msgspec
import numpy as np
import pytest

from fedmon.node.runs.folder import GivenDataset
from fedmon.node.runs.sandbox.kernel import sealed
from fedmon.plan import process
from fedmon.plan.values import json_text
from tests.node.runs.kept_jobs import kept_jobs
from tests.plan.trials import packed, run_body


def test_what_the_researcher_gave_is_there_and_comes_back() -> None:
    body = """
        assert context.dataset is None and context.job_id and context.node_id
        return {"got": context.arguments, "inputs": context.inputs, "type": type(context.inputs).__name__}
    """
    arguments = {"rate": 0.5, "names": ["ä", "\\", '"\n', "😀"], "deep": {"none": None, "big": 2**63}}

    ran = run_body(body, arguments=arguments, inputs=b'{"a":[1,true]}', inputs_format="json")

    assert ran.values() == {"got": arguments, "inputs": {"a": [1, True]}, "type": "dict"}


def test_arrays_come_in_without_a_copy_can_be_written_to_and_go_back() -> None:
    _, inputs = packed({"w": np.arange(6.0).reshape(2, 3), "n": {"b": np.array([True, False])}})
    body = """
        w = context.inputs["w"]
        assert not w.flags.owndata
        w += 1
        return {"w": w, "b": ~context.inputs["n"]["b"]}
    """

    values = run_body(body, inputs=inputs, inputs_format="npz").values()

    assert values["w"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert values["b"].tolist() == [False, True]
    without = msgspec.structs.replace(kept_jobs().interpreter, path=[])
    ran = run_body(body, inputs=inputs, inputs_format="npz", interpreter=without)
    assert ran.said[1].startswith("the inputs cannot be read: the values hold arrays, and this Python has no numpy")


def test_a_python_without_the_functions_of_json_reads_and_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a": [1, 0.5, None, True, "ä\n"], "b": {}}
    monkeypatch.setitem(sys.modules, "_json", None)

    monkeypatch.setattr(process, "JOB", sealed("job", json_text(values).encode()))

    assert json_text(values) == '{"a":[1,0.5,null,true,"ä\\n"],"b":{}}'
    assert process._read_job() == values


def test_a_signal_handler_may_report_whatever_the_plan_is_doing() -> None:
    body = """
        import signal
        handled = 0
        def handle(*_):
            nonlocal handled
            handled += 1
            context.report(handled=handled)
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        sent = 0
        while handled < 200:
            sent += 1
            context.report(sent=sent)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return {"sent": sent, "handled": handled}
    """

    ran = run_body(body)

    assert ran.said == ("succeeded", "")
    assert ran.ending.scalars == sum(ran.values().values())


@pytest.mark.parametrize(
    "broken", ["None", "object()", "type('S', (), {'flush': lambda s: 1 / 0, 'write': lambda s, t: 1 / 0})()"]
)
def test_a_plan_that_breaks_its_own_streams_still_has_its_result_and_its_failure(broken: str) -> None:
    returned = run_body(f"import sys\nsys.stdout = sys.stderr = {broken}\nreturn {{'n': 1}}")
    failed = run_body(f"import sys\nsys.stdout = sys.stderr = {broken}\nraise ValueError")

    assert returned.said == ("succeeded", "")
    assert failed.said == ("failed", "the plan raised ValueError (line 6)")


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


def test_what_the_owner_says_about_a_dataset_is_there() -> None:
    dataset = GivenDataset(
        dataset_id="d1", name="patients", data_type="csv", path="/patients.csv", tags=["x"], shape=[3, 3]
    )
    body = """
        d = context.dataset
        return {"about": [d.dataset_id, d.name, d.data_type, d.tags, d.shape, str(d.path)]}
    """

    about = run_body(body, dataset=dataset).values()["about"]

    assert about == ["d1", "patients", "csv", ["x"], [3, 3], "/patients.csv"]


def test_the_class_in_a_process_can_show_its_own_source() -> None:
    ran = run_body("import inspect\nreturn {'is': 'return {' in inspect.getsource(type(self))}")

    assert ran.values() == {"is": True}


def test_nothing_is_imported_that_a_plan_does_not_use() -> None:
    loaded = set(run_body("import sys\nreturn {'m': sorted(sys.modules)}").values()["m"])

    assert (
        loaded & {"json", "re", "typing", "os", "site", "numpy", "inspect", "pathlib", "traceback", "threading"}
        == set()
    )
