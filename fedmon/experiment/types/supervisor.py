"""The supervisor of commands: it outlives the process that starts them, and records how each one ended.

Run as a script, once per process that starts commands. A message on its standard input, a socket, carries four
descriptors: the record, a connection, stdout and stderr. Each is served by a fork, so a folder that hangs delays no
other command, and the death of one fork loses no other exit code. The connection brings a line of JSON, ``[words,
folder, environment]``, and takes the answer: ``[pid, errno, file]``.

The record is a file that stays locked until the command and its process group have ended. It holds "PID", and after the
end "PID CODE"; a signal is a negative code.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket


def _serve() -> None:
    os.setsid()  # Ctrl-C at the terminal is not for commands
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks leave no zombies
    with socket.socket(fileno=os.dup(0)) as server:
        os.dup2(1, 0)
        while descriptors := socket.recv_fds(server, 1, 4)[1]:
            if len(descriptors) == 4 and os.fork() == 0:  # fewer: no more files may be open
                server.close()
                _supervise(*descriptors)
                return
            for descriptor in descriptors:
                os.close(descriptor)


def _supervise(record: int, connection: int, *streams: int) -> None:
    """Run the requested command, answer, and record its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid, code, about = 0, 0, ""
    for descriptor in (record, connection, *streams):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no names
    with socket.socket(fileno=connection) as asker:
        try:
            with asker.makefile("rb") as request:
                words, about, environment = json.loads(request.readline())
            os.chdir(about)
            about = words[0]
            os.environ["PATH"] = environment.get("PATH", os.defpath)  # where the program is looked for
            files = [(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams, start=1)]
            ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python, and so by its children
            pid = os.posix_spawnp(
                about, words, environment, file_actions=files, setpgroup=0, setsigmask=(), setsigdef=ignored
            )
            _write(record, str(pid))
        except OSError as error:
            code = error.errno or 0
        except ValueError:  # the experiment's process was killed while it asked
            return
        os.chdir("/")
        for stream in streams:
            os.close(stream)
        if not pid:
            os.close(record)
        with contextlib.suppress(OSError):  # the experiment's process was killed meanwhile
            asker.sendall(json.dumps([pid, code, about]).encode())
    if not pid:
        return
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if ended is not None:
        _write(record, f"{pid} {ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status}")
    with contextlib.suppress(OSError):  # some systems know no group without a running member
        os.killpg(pid, signal.SIGKILL)  # before the reaping, so the number is still the command's
    os.waitpid(pid, 0)


def _write(record: int, text: str) -> None:
    """Write within the block that the file already has, so a full disk cannot prevent it."""
    os.pwrite(record, text.ljust(62).encode() + b"\n", 0)


if __name__ == "__main__":
    _serve()
