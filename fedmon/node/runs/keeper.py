"""The launcher, and the keepers that it forks: processes that start plans, supervise them and write how they ended.

The launcher is small, has one thread, and has imported all modules that keepers need. Its arguments are the numbers of
two sockets: one brings orders and ends with the daemon, one is for pokes; see launcher.py. A keeper outlives the daemon
and communicates by the files of the job's folder alone; see folder.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.wire.runs import JobState, Problem
from fedmon.node.cgroup import JobGroup, kill_in
from fedmon.node.collectors.job.family import descendants
from fedmon.node.collectors.job.process import Birth, find_birth
from fedmon.node.runs.folder import Ending, JobFolder, JobOrder, end_all, remove_tree, write_ending
from fedmon.node.runs.launcher import READY, TAKEN
from fedmon.node.runs.sandbox import bubblewrap, kernel, process
from fedmon.node.runs.supervision import CHUNK_BYTES, Signals, Supervision, reap

_MAX_PATH_BYTES = 16_384
_MAX_DESCRIPTORS = 4
_LONG_TEXT = 16_384


def main() -> int:
    """Fork a keeper for each order, until the daemon ends."""
    commands, pokes = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for each in (commands, pokes):
        each.set_inheritable(False)
    kernel.name_process(b"fedmon-launcher")
    # Keepers outlive the launcher, so it does not wait for them. Ctrl-C is for the daemon, whose end ends the launcher.
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # memory that no collection touches stays shared with all keepers
    with contextlib.suppress(ConnectionError):  # the daemon ended, or ends between two orders
        commands.send(READY, socket.MSG_NOSIGNAL)
        while True:
            message, descriptors, _, _ = socket.recv_fds(commands, _MAX_PATH_BYTES, _MAX_DESCRIPTORS)
            if not message:
                break
            _fork(commands, pokes, Path(os.fsdecode(message)), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            commands.send(TAKEN, socket.MSG_NOSIGNAL)
    return 0


def _fork(commands: socket.socket, pokes: socket.socket, folder: Path, descriptors: list[int]) -> None:
    try:
        child = os.fork()
    except OSError as error:
        write_ending(folder, _not_started(f"no process could be started for it: {error.strerror}"))
        return
    if child:
        return
    try:
        commands.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        lock, order, plan, *inputs = descriptors
        Keeper(JobFolder(folder), lock, pokes).keep(order, plan, inputs[0] if inputs else None)
    finally:
        os._exit(0)


class Keeper:
    """Keeps the job of a folder from its start to its end; ``lock`` is held until the ending is written."""

    def __init__(self, folder: JobFolder, lock: int, pokes: socket.socket) -> None:
        self._folder, self._lock, self._pokes = folder, lock, pokes
        self._afterwards = contextlib.ExitStack()

    def keep(self, order: int, plan: int, inputs: int | None) -> None:
        """Run the job to its end; never raises."""
        begun = time.time()
        try:
            ending = self._kept(order, plan, inputs)
        except BaseException as error:  # noqa: BLE001 - every job needs an ending
            trace = "".join(traceback.format_exception(error))[-_LONG_TEXT:]
            ending = Ending(
                state=JobState.LOST,
                reason="the keeper of the job failed; this is a defect of fedmon",
                started=begun,
                ended=time.time(),
                problem=Problem(type=type(error).__name__, message=str(error)[:_LONG_TEXT], traceback=trace),
            )
        with contextlib.suppress(OSError):
            write_ending(self._folder.path, ending)
        os.close(self._lock)
        self._poke()
        with contextlib.suppress(OSError):  # a failed clean-up changes no ending
            self._afterwards.close()

    def _kept(self, given: int, plan: int, inputs: int | None) -> Ending:
        _become_keeper()
        signals = Signals(self._folder)
        me = find_birth(os.getpid())
        if me is not None:
            os.pwrite(self._lock, b"%d %d\n" % (me.pid, me.start), 0)
        order = msgspec.json.decode(Path(f"/proc/self/fd/{given}").read_bytes(), type=JobOrder)
        asked = signals.asked() or self._folder.stop_asked()  # it may have come before a signal could
        if asked is not None:
            return Ending(state=asked.state, reason=asked.reason, ended=time.time())
        limits = order.limits
        processes = limits.processes + order.sandbox_processes
        group = JobGroup(self._folder.cgroup, memory_bytes=limits.memory_bytes, processes=processes)
        self._afterwards.callback(group.remove)
        files = process.own_folder(order)
        if files is not None:
            self._afterwards.callback(remove_tree, files)
        try:
            try:
                supervision = Supervision(order, self._folder, self._lock, group, signals, self._poke)
                started = time.time()
                pid, pipes = _started(order, group, plan, inputs)
            except (FedmonError, OSError) as error:
                return _not_started(str(error))
            return supervision.run(pid, pipes, started=started)
        finally:
            kill_in(group.folders.values())
            end_all(_children)

    def _poke(self) -> None:
        """Tell the daemon of news; one that takes no more pokes, or has ended, looks for itself later."""
        with contextlib.suppress(OSError):
            self._pokes.send(self._folder.path.name.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _become_keeper() -> None:
    os.setsid()
    kernel.name_process(b"fedmon-keeper")
    # A process that leaves its parent becomes our child, so that no process of the job gets away.
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def _children() -> list[Birth]:
    reap()
    return descendants(os.getpid())


def _not_started(reason: str) -> Ending:
    return Ending(state=JobState.NOT_STARTED, reason=reason, ended=time.time())


def _started(order: JobOrder, group: JobGroup, plan: int, inputs: int | None) -> tuple[int, list[int]]:
    """Start the plan's first process; return its pid and our ends of stdout, stderr and the channel.

    Raises StorageError and ConflictError naming why it could not be started, and OSError.
    """

    def first() -> None:
        # A machine without memory ends the plan before its keeper; see proc(5), oom_score_adj.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
        group.enter()

    pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
    for read, _ in pipes:
        os.set_blocking(read, False)
        with contextlib.suppress(OSError):  # an ordinary user may have only so much in pipes
            fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    stdout, stderr, channel = (write for _, write in pipes)
    told = {name: getattr(order, name) for name in ("job_id", "node_id", "name", "arguments", "inputs_format")}
    told |= {"output_bytes": order.limits.output_bytes, "path": order.interpreter.path}
    told["dataset"] = order.dataset and {**msgspec.structs.asdict(order.dataset), "path": bubblewrap.data_path(order)}
    given = {
        0: null,
        1: stdout,
        2: stderr,
        3: kernel.sealed("job", msgspec.json.encode(told)),
        4: _reopened(plan),
        5: null if inputs is None else _reopened(inputs),
        6: channel,
    }
    pid = process.start(order, given, first=first, memory_is_held=group.holds_memory)
    for descriptor in set(given.values()):
        os.close(descriptor)
    return pid, [read for read, _ in pipes]


def _reopened(descriptor: int) -> int:
    """Return a descriptor of the same bytes, read-only and at their start."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


if __name__ == "__main__":
    sys.exit(main())
