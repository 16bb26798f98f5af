"""The first process of a job: prepared by its keeper, confined between fork and exec, then the interpreter."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from fedmon.common.errors import ConflictError, StorageError
from fedmon.node.collectors.job.family import tasks_of
from fedmon.node.runs.folder import TMP, JobFolder, JobOrder
from fedmon.node.runs.sandbox import bubblewrap, kernel, landlock, seccomp

MAIN = "fedmon/plan/main.py"
START_TIMEOUT_S = 60.0
_FIRST_FREE = 64
_OPEN_FILES = 4096
_MESSAGE_BYTES = select.PIPE_BUF
"""Written to a pipe at once. Source: Linux man-pages, pipe(7)."""


class _Program(msgspec.Struct, frozen=True, kw_only=True):
    """The program of the first process; ``confine`` is called in that process right before exec."""

    words: list[str]
    home: str
    confine: Callable[[], None]


def start(
    order: JobOrder,
    descriptors: Mapping[int, int],
    *,
    first: Callable[[], None] = lambda: None,
    memory_is_held: bool = False,
    timeout_s: float = START_TIMEOUT_S,
) -> int:
    """Fork, confine and exec; return the child's pid once it is the program (bubblewrap or the interpreter).

    ``descriptors`` gives 0 to 6 by those of this process. ``first`` is called in the child before anything else. If
    ``memory_is_held`` the cgroup that it enters bounds its memory; else memory that counts in no process is denied.
    Raises ConflictError if the interpreter's files would show the node's own, or if the dataset holds a way out, and
    StorageError naming the cause if the program did not start; a child that was killed for it has to be waited for.
    """
    _check(order)
    prepare = _in_bubblewrap if order.level == "bubblewrap" else _beside
    program = prepare(order, memory_is_held=memory_is_held)
    told, tell = os.pipe()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _become(order, program, descriptors, tell, keeper, first)
    os.close(tell)
    cause = _heard(told, timeout_s)
    if cause is None:
        os.kill(child, signal.SIGKILL)
        raise StorageError(
            f"the sandbox ({order.level}) was not ready after {timeout_s:g} s: does the file system of the dataset "
            "answer?"
        )
    if cause:
        os.waitpid(child, 0)
        raise StorageError(f"the sandbox ({order.level}) could not be started: {cause.decode(errors='replace')}")
    return child


def own_folder(order: JobOrder) -> Path | None:
    """Return the folder with the files of a job, whose size its keeper has to watch; None if the sandbox bounds it."""
    return None if order.level == "bubblewrap" else Path(order.folder, TMP)


def _in_bubblewrap(order: JobOrder, *, memory_is_held: bool) -> _Program:
    bwrap = bubblewrap.program()
    if bwrap is None:
        raise StorageError("bubblewrap is no longer installed")
    sources = bubblewrap.given(order)
    namespace_at, filter_at, words_at = 7, 8, 9
    words = bubblewrap.options(order, sources, namespace_at=namespace_at, filter_at=filter_at)

    def confine() -> None:
        namespace, rules = bubblewrap.prepare(sources, memory_is_held=memory_is_held)
        own = {
            namespace_at: namespace,
            filter_at: kernel.sealed("filter", rules),
            # In a file: the plan can read a command line, which would show the places of the data.
            words_at: kernel.sealed("options", b"".join(os.fsencode(word) + b"\0" for word in words)),
        }
        _number(own)
        _limit(order, processes=order.limits.processes + order.sandbox_processes)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)

    return _Program(
        words=[bwrap, "--args", str(words_at), "--", *_interpreter(order, bubblewrap.RUNTIME)],
        home=bubblewrap.TMP,
        confine=confine,
    )


def _beside(order: JobOrder, *, memory_is_held: bool) -> _Program:
    """Prepare a plan that shares the namespaces of its keeper."""
    home = str(Path(order.folder, TMP))
    Path(home).mkdir(mode=0o700, exist_ok=True)
    version = landlock.abi() if order.level == "landlock" else 0
    readable = [*order.interpreter.needs, order.runtime]
    if order.dataset is not None:
        readable.append(order.dataset.path)

    # Here the limit counts all processes of this user. It bounds forks between two looks of the keeper, who counts the
    # job alone; new processes of the user meanwhile must not make the plan fail.
    others = tasks_of(os.getuid()) if os.getuid() else 0  # root is exempt from it

    def confine() -> None:
        os.chdir(home)
        _limit(order, processes=order.limits.processes + others + others // 4)
        if order.level is None:
            return
        kernel.no_new_privileges()
        kernel.drop_capabilities()
        if order.level == "landlock":
            landlock.restrict(readable=readable, writable=[home], devices=[*bubblewrap.DEVICES, *order.devices])
        rules = seccomp.rules_without_namespaces(
            os.getpid(),
            signals_are_scoped=version >= 6,
            truncation_is_covered=version >= 3,
            memory_is_held=memory_is_held,
        )
        seccomp.install(seccomp.assemble(rules))

    return _Program(words=_interpreter(order, order.runtime), home=home, confine=confine)


def _become(
    order: JobOrder,
    program: _Program,
    descriptors: Mapping[int, int],
    tell: int,
    keeper: int,
    first: Callable[[], None],
) -> NoReturn:
    try:
        # The plan dies with its keeper, also if that ends before exec.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        first()
        tell = _out_of_the_way(tell)
        _forget_signals()
        kernel.close_on_exec()
        _number(descriptors)
        program.confine()
        # Again: a change of user clears it.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:
            environment = {
                "PATH": str(Path(order.interpreter.executable).parent),
                "LANG": "C.UTF-8",
                "HOME": program.home,
                "TMPDIR": program.home,
                "FEDMON_JOB_ID": order.job_id,
            }
            os.execve(program.words[0], program.words, environment)  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - a child must never go on as a second keeper
        os.write(tell, f"{type(error).__name__}: {error}".encode()[:_MESSAGE_BYTES])
    finally:
        os._exit(127)


def _heard(told: int, timeout_s: float) -> bytes | None:
    """Return the only message in a pipe, without a byte if it was closed at exec; None after ``timeout_s``."""
    with open(told, "rb", buffering=0) as file:
        poller = select.poll()
        poller.register(file, select.POLLIN)
        return file.read(_MESSAGE_BYTES) if poller.poll(timeout_s * 1000) else None


def _interpreter(order: JobOrder, runtime: str) -> list[str]:
    return [order.interpreter.executable, "-I", "-S", "-B", "-X", "utf8", f"{runtime}/{MAIN}"]


def _limit(order: JobOrder, *, processes: int) -> None:
    """Set the limits of each process; cgroup and keeper enforce those of the whole job."""
    limits = order.limits
    for limit, value in (
        (kernel.RLIMIT_LOCKS, JobFolder(Path(order.folder)).mark),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(limits.cpu_s) + 1),
        (resource.RLIMIT_FSIZE, limits.tmp_bytes),
        # Writable private memory; unlike RLIMIT_AS it does not count memory that CUDA and others only reserve.
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (most, most))


def _forget_signals() -> None:
    """Reset all signals to their defaults, and block none."""
    for each in signal.valid_signals():
        with suppress(OSError):  # SIGKILL and SIGSTOP have no handler
            signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _number(descriptors: Mapping[int, int]) -> None:
    """Give descriptors the numbers by which the program gets them."""
    for number, given in [(number, _out_of_the_way(given)) for number, given in descriptors.items()]:
        os.dup2(given, number, inheritable=True)


def _out_of_the_way(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)


def _check(order: JobOrder) -> None:
    """Raise ConflictError or StorageError for files that a plan must not get; see `start`."""
    node = os.path.realpath(order.folder)
    for need in order.interpreter.needs:
        shown = os.path.realpath(need).rstrip("/")
        if not Path(need).is_symlink() and (node == shown or node.startswith(f"{shown}/")):
            raise ConflictError(
                f"the interpreter {order.interpreter.executable} needs {need}, which holds this node's own files: "
                "name another in [runs] python, or keep the node in another folder"
            )
    if order.dataset is None:
        return
    path = order.dataset.path
    if os.path.realpath(path) != path:
        # The maker of the link decides about its target, not the owner.
        raise ConflictError(f"the dataset at {path} is now reached through a link: its owner has to edit its path")
    if order.level == "bubblewrap":
        try:
            _refuse_way_out(path)
        except OSError as error:
            raise StorageError(f"the dataset at {path} cannot be given to a plan: {error.strerror}") from error


def _refuse_way_out(dataset: str) -> None:
    """Raise ConflictError if a file or folder holds a socket, pipe or device; raises OSError."""
    mode = Path(dataset).stat().st_mode
    folders = [dataset] if stat.S_ISDIR(mode) else []
    ways_out = [] if stat.S_ISDIR(mode) or stat.S_ISREG(mode) else [dataset]
    while folders and not ways_out:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                    ways_out.append(entry.path)
    if ways_out:
        raise ConflictError(
            f"the dataset holds {ways_out[0]}, which is neither file nor folder: a plan could reach another process "
            "through it; take it away"
        )
