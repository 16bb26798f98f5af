"""The parent of a command that outlives the experiment's process; it keeps how the command ended.

Run as a script. It imports nothing of ours, to start fast. Its arguments are the descriptors of the record and of a
pipe, and the words of the command. The record is a file whose lock it holds as long as it runs: "PID" once the command
runs, "PID CODE" once it has ended (a signal is a negative code). On the pipe it writes "PID", or "error ERRNO" if the
command cannot be run. The command leads a process group of its own, and what is left of that ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def _supervise(record: int, pipe: int, words: list[str]) -> None:
    for descriptor in (record, pipe):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no names
    # Handled, not ignored: what is ignored here would be ignored by the command, too.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    pid = 0
    try:
        pid = os.posix_spawnp(
            words[0], words, os.environ, setpgroup=0, setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
        )
    except OSError as error:
        said = f"error {error.errno}"
    else:
        said = str(pid)
        _write(record, said)
    with contextlib.suppress(BrokenPipeError):  # the experiment's process has ended meanwhile
        os.write(pipe, said.encode())
    os.close(pipe)
    if not pid:
        return
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(OSError):  # not reaped yet, so the number of the group is still the command's
        os.killpg(pid, signal.SIGKILL)
    if ended is not None:
        _write(record, f"{pid} {ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status}")
    os.waitpid(pid, 0)


def _write(record: int, text: str) -> None:
    """Write within the block that the file has already, so that a full disk cannot prevent it."""
    os.pwrite(record, text.ljust(62).encode() + b"\n", 0)


if __name__ == "__main__":
    _supervise(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
