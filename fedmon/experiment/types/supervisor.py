"""The parent of a command that outlives the experiment's process; it keeps how the command ended.

Run as a script. It imports next to nothing: half of the start of a command is the start of this. Its arguments are the
descriptors of the record and of a pipe, the numbers of the signals that Python ignores and a command does not, and the
words of the command. The record is a file whose lock it holds as long as it runs: "PID" once the command runs,
"PID CODE" once it has ended (a signal is a negative code). On the pipe it writes "PID", or "error ERRNO" if the command
cannot be run. The command leads a process group, and what is left of that ends with it.
"""

from __future__ import annotations

import os
import sys

_SIGKILL = 9


def _supervise(record: int, pipe: int, ignored: list[int], words: list[str]) -> None:
    for descriptor in (record, pipe):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no names
    try:
        pid = os.posix_spawnp(words[0], words, os.environ, setpgroup=0, setsigmask=(), setsigdef=ignored)
    except OSError as error:
        _tell(pipe, f"error {error.errno}")
        return
    _write(record, str(pid))
    _tell(pipe, str(pid))
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if ended is not None:
        _write(record, f"{pid} {ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status}")
    try:
        os.killpg(pid, _SIGKILL)  # not reaped yet, so the number of the group is still the command's
    except OSError:  # on some systems there is none left
        return
    os.waitpid(pid, 0)


def _tell(pipe: int, text: str) -> None:
    try:
        os.write(pipe, text.encode())
    except BrokenPipeError:  # the experiment's process has ended meanwhile
        return
    finally:
        os.close(pipe)


def _write(record: int, text: str) -> None:
    """Write within the block that the file has already, so that a full disk cannot prevent it."""
    os.pwrite(record, text.ljust(62).encode() + b"\n", 0)


if __name__ == "__main__":
    _supervise(int(sys.argv[1]), int(sys.argv[2]), [int(each) for each in sys.argv[3].split(",")], sys.argv[4:])
