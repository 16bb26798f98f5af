"""Run a plan once on this machine in the sandbox of nodes, watched over as a job is, with nobody's approval."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from fedmon.common.ids import new_id
from fedmon.common.wire.runs import JobState, Level, Trace
from fedmon.node.runs.folder import Events, JobFolder
from fedmon.node.runs.launching import Launcher
from fedmon.node.runs.order import Ending, JobOrder, Logged, Reported
from fedmon.node.runs.sealed import sealed
from fedmon.node.runs.trial import Trial, Tried
from fedmon.plan import runtime

_LOOK_S = 0.5  # how soon what no poke told is seen
_TRACE_BYTES = 1 << 20
_PIECE_BYTES = 32_768


def run_confined(trial: Trial, level: Level, on_event: Callable[[Reported | Logged], None] = lambda _: None) -> Tried:
    """Run the plan to its end at this level; what it prints goes to our standard error, as far as it is kept.

    Interrupted, it ends all of the plan's processes first. Raises StorageError, ConflictError and LauncherError.
    """
    news = threading.Event()
    with tempfile.TemporaryDirectory(prefix="fedmon-plan-") as base, contextlib.ExitStack() as stack:
        runtime.lay_out(Path(base, "runtime"), python=trial.interpreter.executable)
        folder = JobFolder(Path(base, "job"))
        launcher = Launcher(on_poke=lambda _: news.set())
        launcher.start()
        stack.callback(launcher.stop)
        plan = sealed("plan", trial.source)
        stack.callback(os.close, plan)
        inputs = None
        if trial.inputs_format is not None:
            inputs = sealed("inputs", trial.inputs)
            stack.callback(os.close, inputs)
        launcher.launch(_order(trial, level, base), plan, inputs)
        try:
            ending = _follow(folder, news, on_event)
        except BaseException:
            folder.stop(JobState.STOPPED, "interrupted")
            _follow(folder, news, lambda _: None)
            raise
        result = folder.result.read_bytes() if ending.result_format is not None else b""
    return Tried(ending=ending, result=result)


def _order(trial: Trial, level: Level, base: str) -> JobOrder:
    return JobOrder(
        job_id=new_id(),
        node_id="here",
        folder=str(Path(base, "job")),
        sha256="",
        name=trial.name,
        interpreter=trial.interpreter,
        runtime=str(Path(base, "runtime")),
        limits=trial.limits,
        minimum=level,
        level=level,
        trace_bytes=_TRACE_BYTES,
        dataset=trial.dataset,
        arguments=trial.arguments,
        inputs_format=trial.inputs_format,
    )


def _follow(folder: JobFolder, news: threading.Event, on_event: Callable[[Reported | Logged], None]) -> Ending:
    """Tell what happens until the job is over, and return how it ended."""
    offset = 0
    printed = {folder.stdout: 0, folder.stderr: 0}
    while True:
        news.wait(_LOOK_S)
        news.clear()
        # Asked before the rest is read: what is written before the end is then seen before it.
        is_over = not folder.is_alive()
        offset = _tell(folder.events(offset), on_event)
        for read, at in printed.items():
            printed[read] = _print(read, at)
        if is_over:
            ending = folder.ending()
            if ending is not None:
                return ending
            reason = "what watches over the job ended before it had written how the job ended"
            return Ending(state=JobState.LOST, reason=reason, started=None, ended=0.0, sandbox=None)


def _tell(events: Events, on_event: Callable[[Reported | Logged], None]) -> int:
    for event in events.events:
        if isinstance(event, Reported | Logged):
            on_event(event)
    return events.next_offset


def _print(read: Callable[[int, int], Trace], offset: int) -> int:
    """Print what came since ``offset``, and return how far that is."""
    while True:
        trace = read(offset, _PIECE_BYTES)
        if trace.next_offset <= offset:
            return offset
        if trace.skipped_bytes:
            sys.stderr.write(f"[{trace.skipped_bytes} bytes are not kept]\n")
        sys.stderr.write(trace.text)
        sys.stderr.flush()
        offset = trace.next_offset
