"""The process that forks keepers: small, with everything imported that they need, and with a single thread.

Run with the numbers of two sockets: one that brings orders and ends with the daemon, one for pokes. See launching.py.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
from pathlib import Path

from fedmon.common.wire.runs import JobState
from fedmon.node.runs.folder import write_ending
from fedmon.node.runs.keeper import keep
from fedmon.node.runs.launching import READY, TAKEN
from fedmon.node.runs.order import Ending
from fedmon.node.runs.sandbox.kernel import LAUNCHER, name_process

MAX_ORDER_BYTES = 16_384
_MAX_DESCRIPTORS = 3


def main() -> int:
    """Fork a keeper for each order, until there is no daemon any more."""
    commands, pokes = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for each in (commands, pokes):
        each.set_inheritable(False)
    name_process(LAUNCHER)
    # Keepers are nobody's to wait for: they outlive us. And Ctrl-C is meant for the daemon, whose end is ours.
    for number, deed in ((signal.SIGCHLD, signal.SIG_IGN), (signal.SIGINT, signal.SIG_IGN)):
        signal.signal(number, deed)
    gc.collect()
    gc.freeze()  # what no collection touches stays shared with all keepers
    with contextlib.suppress(ConnectionError):  # the daemon ended meanwhile, which is heard next
        commands.send(READY, socket.MSG_NOSIGNAL)
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(commands, MAX_ORDER_BYTES, _MAX_DESCRIPTORS)
        except ConnectionError:
            return 0
        if not message:
            return 0
        job_id, _, folder = message.partition(b"\0")
        _fork(commands, pokes, job_id, Path(os.fsdecode(folder)), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ConnectionError):
            commands.send(TAKEN, socket.MSG_NOSIGNAL)


def _fork(commands: socket.socket, pokes: socket.socket, job_id: bytes, folder: Path, descriptors: list[int]) -> None:
    try:
        child = os.fork()
    except OSError as error:
        reason = f"no process could be started for it: {error.strerror}"
        now = time.time()
        write_ending(folder, Ending(state=JobState.NOT_STARTED, reason=reason, started=None, ended=now, sandbox=None))
        pokes.send(job_id, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return
    if child:
        return
    try:
        commands.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        lock, plan, *inputs = descriptors
        keep(folder, lock=lock, plan=plan, inputs=inputs[0] if inputs else None, pokes=pokes)
    finally:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
