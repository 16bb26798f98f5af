"""The workers that fetch training plans and check their code, so that the router need not wait."""

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

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.settings import RepositorySettings
from fedmon.node.registers.plan_check import CPU_S, MEMORY_BYTES, PARSED
from fedmon.node.registers.plan_source import visible_text
from fedmon.node.registers.plans import CodeCheck

logger = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 15.0
MAX_CHECKS = 1000
MAX_DOWNLOADS = 100
DOWNLOAD_TIMEOUT_S = 30.0
MAX_PROBLEM_LENGTH = 500

_MARK = f"{PARSED}\n".encode()
_SCRIPT = Path(__file__).with_name("plan_check.py")


class PlanChecker:
    """One thread that runs the check of each submitted plan in a limited child process.

    ``read`` returns the bytes of a digest (`PlanStore.read`); ``on_check(sha256, check)`` is called on the
    checker's thread and must only hand over. `submit` and `stop` are safe from any thread.
    """

    def __init__(
        self,
        read: Callable[[str], bytes],
        on_check: Callable[[str, CodeCheck], None],
        *,
        timeout_s: float = CHECK_TIMEOUT_S,
        capacity: int = MAX_CHECKS,
    ) -> None:
        self._read, self._on_check, self._timeout_s = read, on_check, timeout_s
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
                check = self._check(self._read(sha256))
            except StorageError as error:
                logger.warning("plan %s cannot be checked: %s", sha256, error)
                continue
            if not self._stopping.is_set():
                self._on_check(sha256, check)

    def _check(self, source: bytes) -> CodeCheck:
        try:
            child = self._started()
        except OSError as error:
            return CodeCheck(problem=f"could not be checked: {error.strerror}")  # says nothing about the code
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


def _understood(returncode: int, output: bytes) -> CodeCheck:
    if returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return _failed(f"could not be read within {CPU_S} s of processor time", output)
    if returncode != 0:
        return _failed(f"could not be read in a process with {MEMORY_BYTES >> 20} MB (ended with {returncode})", output)
    try:
        check = msgspec.json.decode(output.removeprefix(_MARK), type=CodeCheck)
    except msgspec.MsgspecError:
        return _failed("could not be read: the check gave no verdict", output)
    return msgspec.structs.replace(
        check, problem=visible_text(check.problem)[:MAX_PROBLEM_LENGTH], parses=output.startswith(_MARK)
    )


def _failed(problem: str, output: bytes) -> CodeCheck:
    return CodeCheck(problem=problem, parses=output.startswith(_MARK))


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


class _Download(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    sha256: str | None
    done: Callable[[bytes | FedmonError], None]


class Fetcher:
    """Fetches one file after another; ``start`` is done by the first job, so that a node without any has no thread."""

    def __init__(
        self, repository: RepositorySettings, *, max_bytes: int, hand_over: Callable[[Callable[[], None]], object]
    ) -> None:
        self._repository, self._max_bytes, self._hand_over = repository, max_bytes, hand_over
        self._queue: queue.Queue[_Download | None] = queue.Queue(MAX_DOWNLOADS)
        self._thread: threading.Thread | None = None

    def submit(self, url: str, sha256: str | None, done: Callable[[bytes | FedmonError], None]) -> bool:
        """Have a file fetched; ``done`` gets its bytes or a FedmonError on the router's thread.

        Without a digest it may be any file.
        """
        try:
            self._queue.put_nowait(_Download(url=url, sha256=sha256, done=done))
        except queue.Full:
            return False
        if self._thread is None:
            # A download may hang in name resolution beyond our reach: it must not keep a stopping node alive.
            self._thread = threading.Thread(target=self._run, name="fedmon-fetcher", daemon=True)
            self._thread.start()
        return True

    def stop(self, timeout_s: float) -> None:
        """End the thread, unless a download keeps it."""
        if self._thread is not None:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            result = self._fetch(job)
            done = job.done
            self._hand_over(lambda done=done, result=result: done(result))  # type: ignore[misc]

    def _fetch(self, job: _Download) -> bytes | FedmonError:
        from fedmon.common.repository import download

        try:
            return download(
                job.url,
                sha256=job.sha256,
                max_bytes=self._max_bytes,
                deadline_s=DOWNLOAD_TIMEOUT_S,
                allowed_urls=self._repository.allowed_urls,
            )
        except FedmonError as error:
            logger.warning("plan %s was not fetched: %s", job.sha256 or "of unknown digest", error)
            return error
