"""Parents of commands, which outlive the experiment's process and keep how each command ended.

Run as a script, once in a process that starts commands: it forks a supervisor for each, because a start of Python would
take ten times as long. Each message on its standard input, a socket, brings the descriptors of one command: its record,
the connection that asks for it, and what it prints to. Asked is by a line of JSON, a list: words, folder, environment.
The answer is one too: the number of the process, errno, and the file that errno is about.

The record is a file whose lock the supervisor holds as long as it runs: "PID" once the command runs, "PID CODE" once it
has ended (a signal is a negative code). The command leads a process group, and what is left of that ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket


def _serve() -> None:
    os.setsid()  # a Ctrl-C at the terminal is not for commands
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as server:
        os.dup2(1, 0)
        while descriptors := socket.recv_fds(server, 1, 4)[1]:
            if os.fork() == 0:
                server.close()
                try:
                    _supervise(*descriptors)
                finally:
                    os._exit(0)  # what Python does at its end takes longer than all of this
            for descriptor in descriptors:
                os.close(descriptor)


def _supervise(record: int, connection: int, *streams: int) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    os.set_inheritable(record, False)  # noqa: FBT003 - it takes no names
    with socket.socket(fileno=connection) as asker:
        asker.set_inheritable(False)
        with asker.makefile("rb") as file:
            words, folder, environment = json.loads(file.readline())
        os.environ["PATH"] = environment.get("PATH", os.defpath)  # where the program is looked for
        pid, code, about = 0, 0, folder
        try:
            os.chdir(folder)
            about = words[0]
            ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python, and so by its children
            pid = os.posix_spawnp(about, words, environment, setpgroup=0, setsigmask=(), setsigdef=ignored)
        except OSError as error:
            code = error.errno or 0
        else:
            _write(record, str(pid))
        with contextlib.suppress(OSError):  # the experiment's process has ended meanwhile
            asker.sendall(json.dumps([pid, code, about]).encode())
    if pid:
        _follow(record, pid)


def _follow(record: int, pid: int) -> None:
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if ended is not None:
        _write(record, f"{pid} {ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status}")
    try:
        os.killpg(pid, signal.SIGKILL)  # not reaped yet, so the number of the group is still the command's
    except OSError:  # on some systems there is none left
        return
    os.waitpid(pid, 0)


def _write(record: int, text: str) -> None:
    """Write within the block that the file has already, so that a full disk cannot prevent it."""
    os.pwrite(record, text.ljust(62).encode() + b"\n", 0)


if __name__ == "__main__":
    _serve()
