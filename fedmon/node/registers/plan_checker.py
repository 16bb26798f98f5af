"""The worker that has the code of training plans read, one after the other, beside the router."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from fedmon.common.errors import StorageError
from fedmon.node.registers.plan_check import CPU_S, MEMORY_BYTES, PARSED
from fedmon.node.registers.plan_records import Verdict
from fedmon.node.registers.plan_view import visible_text

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 15.0
DEFAULT_CAPACITY = 1000
MAX_PROBLEM_LENGTH = 500

_MARK = f"{PARSED}\n".encode()
_SCRIPT = Path(__file__).with_name("plan_check.py")


class PlanChecker:
    """One thread that runs the check of each submitted plan in a limited child process.

    ``read`` returns the bytes of a digest (`PlanStore.read`); ``on_verdict(sha256, verdict)`` is called on the
    checker's thread and must only hand over. `submit` and `stop` are safe from any thread.
    """

    def __init__(
        self,
        read: Callable[[str], bytes],
        on_verdict: Callable[[str, Verdict], None],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        self._read, self._on_verdict, self._timeout_s = read, on_verdict, timeout_s
        self._queue: queue.Queue[str | None] = queue.Queue(capacity)
        self._stopping = threading.Event()
        self._child_lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="plan-checker")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, sha256: str) -> bool:
        """Have a plan checked; False when too many wait (it stays among `PlanRegister.unchecked`)."""
        try:
            self._queue.put_nowait(sha256)
        except queue.Full:
            return False
        return True

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread and the child that it runs; what waits stays unchecked."""
        self._stopping.set()
        with self._child_lock:
            if self._child is not None:
                _kill(self._child)
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while not self._stopping.is_set():
            sha256 = self._queue.get()
            if sha256 is None or self._stopping.is_set():
                return
            try:
                verdict = self._verdict(self._read(sha256))
            except StorageError as error:
                logger.warning("plan %s cannot be checked: %s", sha256, error)
                continue
            if not self._stopping.is_set():
                self._on_verdict(sha256, verdict)

    def _verdict(self, source: bytes) -> Verdict:
        try:
            child = self._started()
        except OSError as error:
            return Verdict(problem=f"could not be checked: {error.strerror}")  # says nothing about the code
        try:
            output, _ = child.communicate(source, timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            _kill(child)
            output, _ = child.communicate()
            return _failed(f"could not be read within {self._timeout_s:g} s", output)
        finally:
            with self._child_lock:
                self._child = None
        return _understood(child.returncode, output)

    def _started(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-I", "-X", "utf8", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        with self._child_lock:
            self._child = child
            if self._stopping.is_set():
                _kill(child)
        return child


def _understood(returncode: int, output: bytes) -> Verdict:
    if returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return _failed(f"could not be read within {CPU_S} s of processor time", output)
    if returncode != 0:
        return _failed(f"could not be read in a process with {MEMORY_BYTES >> 20} MB (ended with {returncode})", output)
    try:
        verdict = msgspec.json.decode(output.removeprefix(_MARK), type=Verdict)
    except msgspec.MsgspecError:
        return _failed("could not be read: the check gave no verdict", output)
    return msgspec.structs.replace(
        verdict, problem=visible_text(verdict.problem)[:MAX_PROBLEM_LENGTH], parses=output.startswith(_MARK)
    )


def _failed(problem: str, output: bytes) -> Verdict:
    return Verdict(problem=problem, parses=output.startswith(_MARK))


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
