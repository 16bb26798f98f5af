"""Commands of schedulers: run as argument lists, bounded in time and size, and gone with their children afterwards."""

from __future__ import annotations

import contextlib
import enum
import os
import selectors
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError
from fedmon.common.log import escape_control
from fedmon.node.collectors.base import CollectorUnavailableError
from fedmon.node.collectors.job.members import Births

MAX_OUTPUT_BYTES = 8_388_608
"""The job list of a large machine is some megabytes."""

PLAIN: Mapping[str, str] = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

_CHUNK_BYTES = 65_536
_SAID = 200
_LOOK_S = 0.05
"""So often the end of a command is looked for while something that it started holds its output open."""
_CLOSED_S = 0.005
"""So often once it has closed its output, for then it is about to end."""


class Failure(enum.Enum):
    """Why a command gave no answer."""

    ABSENT = "is not installed"
    NOT_STARTED = "cannot be started"
    TIMED_OUT = "did not end in time"
    TOO_LONG = "said too much"
    ENDED_BADLY = "ended badly"
    NOT_UNDERSTOOD = "is not understood"
    GIVEN_UP = "was not waited for"
    UNKNOWN_JOB = "knows no such job"


class CommandError(FedmonError):
    """A scheduler's command gave no answer; ``failure`` and the text say why."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What a command said; ``rc`` is its exit status, or minus the signal that ended it."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str

    def checked(self) -> str:
        """Return the standard output. Raises CommandError when the status is not 0."""
        if self.rc == 0:
            return self.stdout
        how = f"was ended by signal {-self.rc}" if self.rc < 0 else f"ended with status {self.rc}"
        said = escape_control(" ".join((self.stderr or self.stdout).split()))[:_SAID]
        raise CommandError(Failure.ENDED_BADLY, f"{self.name} {how}: {said}" if said else f"{self.name} {how}")

    def misunderstood(self, detail: str) -> CommandError:
        """Return the error of an output that is not what the command is known to print."""
        return CommandError(Failure.NOT_UNDERSTOOD, f"what {self.name} says is not understood: {detail}")

    @property
    def name(self) -> str:
        """The command with its first words, for people."""
        return " ".join((Path(self.argv[0]).name, *(escape_control(word) for word in self.argv[1:3])))


Runner = Callable[[Sequence[str], float], Output]
"""Runs an argument list within a time in seconds. Raises CommandError."""


class Stop(Protocol):
    """Says that nobody waits for an answer any more; a threading.Event does."""

    def is_set(self) -> bool:
        """Tell whether that is so."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until that is so, at most so many seconds, and tell whether it is."""
        ...


def runner(environ: Mapping[str, str], *, stop: Stop | None = None) -> Runner:
    """Return what runs commands in this environment: its PATH finds them, and SLURM_CONF and the like reach them."""
    return lambda argv, timeout_s: run(argv, timeout_s, environ=environ, stop=stop)


def run(
    argv: Sequence[str], timeout_s: float, *, environ: Mapping[str, str] = PLAIN, stop: Stop | None = None
) -> Output:
    """Run a command without a shell, in English, without input, and return what it said and how it ended.

    Raises CommandError when it is absent, cannot be started, does not end within ``timeout_s``, or prints more than
    8 MiB, or when ``stop`` is set meanwhile. Nothing that it started lives on.
    """
    program = shutil.which(argv[0], path=environ.get("PATH", PLAIN["PATH"]))
    if program is None:
        raise CommandError(Failure.ABSENT, f"{argv[0]} is not installed, or not on the PATH")
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environ, "LC_ALL": "C", "LANGUAGE": "C"},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        detail = getattr(error, "strerror", None) or error
        raise CommandError(Failure.NOT_STARTED, f"{argv[0]} cannot be started: {detail}") from None
    with process:
        try:
            stdout, stderr = _read(process, argv[0], timeout_s, stop)
        finally:
            _end(process)
    return Output(
        argv=tuple(argv),
        rc=process.returncode,
        stdout=stdout.decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
    )


def _read(process: subprocess.Popen[bytes], name: str, timeout_s: float, stop: Stop | None) -> tuple[bytes, bytes]:
    """Read both streams until they are closed, or the command has ended and said nothing more."""
    deadline = Deadline(timeout_s)
    said = {pipe.fileno(): bytearray() for pipe in (process.stdout, process.stderr) if pipe is not None}
    with selectors.DefaultSelector() as selector:
        for descriptor in said:
            selector.register(descriptor, selectors.EVENT_READ)
        while True:
            has_ended = _has_ended(process)
            is_closed = not selector.get_map()
            if (has_ended and is_closed) or (not has_ended and deadline.passed()):
                break
            ready = selector.select(0.0 if has_ended else min(_CLOSED_S if is_closed else _LOOK_S, deadline.left_s()))
            if not has_ended and stop is not None and stop.is_set():
                raise CommandError(Failure.GIVEN_UP, f"{name} was not waited for: the run ends")
            if has_ended and not ready:  # a child of it holds the output open
                break
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                said[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
            if sum(map(len, said.values())) > MAX_OUTPUT_BYTES:
                raise CommandError(Failure.TOO_LONG, f"{name} said more than {MAX_OUTPUT_BYTES // 1_048_576} MiB")
    if not has_ended:
        raise CommandError(Failure.TIMED_OUT, f"{name} did not end within {timeout_s:.1f} s")
    stdout, stderr = said.values()
    return bytes(stdout), bytes(stderr)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether the command has ended, and leave it as a zombie: so long nobody else gets its number."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a command: its session, and what it started in sessions of their own."""
    for pid in (*_descendants(process.pid), process.pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _descendants(root: int) -> list[int]:
    try:
        births = Births().everything()
    except CollectorUnavailableError:
        return []
    found = {root}
    grew = True
    while grew:
        more = {birth.pid for birth in births if birth.parent in found or birth.session == root} - found
        found |= more
        grew = bool(more)
    return sorted(found - {root})
