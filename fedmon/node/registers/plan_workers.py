"""The workers that fetch training plans and check their code, so that the router need not wait."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from fedmon.common.actor import Actor, Bound
from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.settings import RepositorySettings
from fedmon.node.registers.plan_check import CPU_S, MEMORY_BYTES
from fedmon.node.registers.plan_source import visible_text
from fedmon.node.registers.plans import CodeCheck

logger = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 15.0
MAX_CHECKS = 1000
MAX_DOWNLOADS = 100
DOWNLOAD_TIMEOUT_S = 30.0
MAX_PROBLEM_LENGTH = 500

_ENDED = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
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
    ) -> None:
        self._read, self._on_check, self._timeout_s = read, on_check, timeout_s
        self._actor = Actor("plan-checker", urgent=Bound(MAX_CHECKS))
        self._stopping = False
        self._submitted = set[str]()

    def start(self) -> None:
        """Start the thread."""
        self._actor.start()

    def submit(self, sha256: str) -> bool:
        """Have a plan checked; False when too many wait (it stays among `PlanRegister.unchecked`)."""
        if sha256 in self._submitted:
            return True
        self._submitted.add(sha256)
        is_taken = self._actor.post(lambda: self._check(sha256))
        if not is_taken:
            self._submitted.discard(sha256)
        return is_taken

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread; waiting plans stay unchecked, and a running child ends at its limits."""
        self._stopping = True
        self._actor.close(timeout_s=timeout_s, drop=True)

    def _check(self, sha256: str) -> None:
        try:
            check = check_source(self._read(sha256), timeout_s=self._timeout_s)
        except StorageError as error:
            logger.warning("plan %s cannot be checked: %s", sha256, error)
            return
        finally:
            self._submitted.discard(sha256)
        if self._stopping:
            return
        if check is None:
            self.submit(sha256)
        else:
            self._on_check(sha256, check)


def check_source(source: bytes, *, timeout_s: float = CHECK_TIMEOUT_S) -> CodeCheck | None:
    """Run the check of a plan in a limited child process, and return the verdict.

    It is None if the child was told to end, as with the whole control group of the node.
    """
    command = [sys.executable, "-I", "-X", "utf8", str(_SCRIPT)]
    try:
        child = subprocess.run(
            command, input=source, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/",
            timeout=timeout_s, check=False, start_new_session=True,  # Ctrl-C is for the node alone
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return CodeCheck(problem=f"could not be read within {timeout_s:g} s")
    except OSError as error:
        return CodeCheck(problem=f"could not be checked: {error.strerror}")
    if child.returncode in _ENDED:
        return None
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return CodeCheck(problem=f"could not be read within {CPU_S} s of processor time")
    try:
        check = msgspec.json.decode(child.stdout, type=CodeCheck)
    except msgspec.MsgspecError:
        ended = f"ended with {child.returncode}"
        return CodeCheck(problem=f"could not be read in a process with {MEMORY_BYTES >> 20} MB ({ended})")
    return msgspec.structs.replace(check, problem=visible_text(check.problem)[:MAX_PROBLEM_LENGTH])


class PlanFetcher:
    """Fetches one file after another; its thread begins with the first one. `submit` is for one thread."""

    def __init__(
        self, repository: RepositorySettings, *, max_bytes: int, hand_over: Callable[[Callable[[], None]], object]
    ) -> None:
        self.repository, self._max_bytes, self._hand_over = repository, max_bytes, hand_over
        self._actor: Actor | None = None

    def submit(self, url: str, sha256: str | None, done: Callable[[bytes | FedmonError], None]) -> bool:
        """Have a file fetched; ``done`` gets its bytes or a FedmonError on the router's thread.

        Without a digest it may be any file. Returns False when too many wait.
        """
        if self._actor is None:
            self._actor = Actor("fedmon-fetcher", urgent=Bound(MAX_DOWNLOADS))
            self._actor.start()
        return self._actor.post(lambda: self._fetch(url, sha256, done))

    def stop(self, timeout_s: float) -> None:
        """End the thread, unless a download keeps it."""
        if self._actor is not None:
            self._actor.close(timeout_s=timeout_s, drop=True)

    def _fetch(self, url: str, sha256: str | None, done: Callable[[bytes | FedmonError], None]) -> None:
        from fedmon.common.http import download

        result: bytes | FedmonError
        try:
            result = download(
                url,
                sha256=sha256,
                max_bytes=self._max_bytes,
                deadline_s=DOWNLOAD_TIMEOUT_S,
                allowed_urls=self.repository.allowed_urls,
            )
        except FedmonError as error:
            logger.warning("plan %s was not fetched: %s", sha256 or "of unknown digest", error)
            result = error
        self._hand_over(lambda: done(result))
