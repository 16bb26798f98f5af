"""Commands of schedulers: without a shell, bounded in time and size, and killed with their children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from fedmon.common.errors import FedmonError
from fedmon.common.log import escape_control

MAX_OUTPUT_BYTES = 8_388_608
"""The job list of a large machine is some megabytes."""
_MAX_MESSAGE = 200
_DIES_WITHIN_S = 1.0


class CommandError(FedmonError):
    """A scheduler's command gave no answer, or one that is not understood; it may answer better later."""


class NoSuchJobError(CommandError):
    """A scheduler does not know the job."""


Runner = Callable[[Sequence[str], float], str]
"""Runs an argument list within a time in seconds, and returns its output. Raises CommandError."""


def run(argv: Sequence[str], timeout_s: float, *, environ: Mapping[str, str]) -> str:
    """Run a command in English and without input, and return its output, at most 8 MiB of it.

    The environment's PATH finds it, and it gets SLURM_CONF and the like.
    Raises CommandError if it is absent, cannot be started, fails, or does not end within ``timeout_s``: its session is
    killed.
    """
    import tempfile  # loads hashing

    # Files, and no pipes: a child of the command may hold its output open.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**environ, "LC_ALL": "C", "LANGUAGE": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise CommandError(f"{argv[0]} is not installed, or cannot be started: {error.strerror}") from None
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise CommandError(f"{argv[0]} did not end within {timeout_s:.1f} s") from None
        finally:
            if process.returncode is None:
                # One that runs as another user, or is held in the kernel, is left alone.
                with contextlib.suppress(PermissionError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(_DIES_WITHIN_S)
        texts = [os.pread(file.fileno(), MAX_OUTPUT_BYTES, 0).decode(errors="replace") for file in (stdout, stderr)]
    return answer(argv, process.returncode, *texts)


def answer(argv: Sequence[str], status: int, stdout: str, stderr: str) -> str:
    """Return the output of a command that has ended. Raises CommandError if its status is not 0; minus is a signal."""
    if status == 0:
        return stdout
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    said = escape_control(" ".join((stderr or stdout).split()))[:_MAX_MESSAGE]
    words = escape_control(" ".join(argv[:3]))
    raise CommandError(f"{words} {how}: {said}" if said else f"{words} {how}")
