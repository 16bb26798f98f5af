"""A job's first process: prepared by its keeper, confined between fork and exec, and then the interpreter."""

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

from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError, StorageError
from fedmon.common.wire.runs import Level
from fedmon.node.collectors.job.family import tasks_of
from fedmon.node.runs.mark import bear, mark_of
from fedmon.node.runs.order import TMP, JobOrder
from fedmon.node.runs.sandbox import bubblewrap, kernel, landlock, seccomp, staging
from fedmon.node.runs.sandbox.user_namespace import own_namespace, spare_user

MAIN = "fedmon/plan/main.py"
START_TIMEOUT_S = 60.0
_FIRST_FREE = 64
_OPEN_FILES = 4096


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What a keeper forks and then becomes.

    ``pass_fds`` are the numbers that the program begins with, by the descriptors of this process that go there.
    ``before_exec`` is called in the child, as the last thing before exec.
    """

    level: Level
    argv: list[str]
    env: dict[str, str]
    pass_fds: dict[int, int]
    before_exec: Callable[[], None]
    own_fds: tuple[int, ...] = ()

    def close(self) -> None:
        """Close the descriptors that were made for this start, not those that were given."""
        for each in self.own_fds:
            os.close(each)

    def start(self, *, first: Callable[[], None] = lambda: None, timeout_s: float = START_TIMEOUT_S) -> int:
        """Fork, confine and exec; return the child's pid once it is the program (bubblewrap or the interpreter).

        ``first`` is called in the child before anything else, to enter a cgroup. Raises StorageError, naming the
        cause, when the child could not become it; one that is only killed is left to be waited for.
        """
        told, tell = os.pipe()
        keeper = os.getpid()
        child = os.fork()
        if child == 0:
            self._become(tell, keeper, first)
        os.close(tell)
        cause = _heard(told, timeout_s)
        if cause is None:
            os.kill(child, signal.SIGKILL)
            raise StorageError(
                f"the sandbox ({self.level}) was not ready after {timeout_s:g} s: does the file system of the dataset "
                "answer?"
            )
        if cause:
            os.waitpid(child, 0)
            raise StorageError(f"the sandbox ({self.level}) could not be started: {cause.decode(errors='replace')}")
        return child

    def _become(self, tell: int, keeper: int, first: Callable[[], None]) -> NoReturn:
        try:
            os.setsid()
            first()
            tell = _out_of_the_way(tell)
            moved = {number: _out_of_the_way(given) for number, given in self.pass_fds.items()}
            _forget_signals()
            kernel.close_on_exec(0)
            for number, given in moved.items():
                os.dup2(given, number, inheritable=True)
            self.before_exec()
            # Only now: a change of user clears it.
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == keeper:
                os.execve(self.argv[0], self.argv, self.env)  # noqa: S606
        except BaseException as error:  # noqa: BLE001 - a child must never go on as a second keeper
            os.write(tell, f"{type(error).__name__}: {error}".encode()[:4096])
        finally:
            os._exit(127)


def command(order: JobOrder, level: Level, descriptors: Mapping[int, int], *, memory_is_held: bool = False) -> Prepared:
    """Prepare the interpreter on a job's plan; ``descriptors`` gives 0 to 6 by those of this process.

    ``memory_is_held`` tells that the cgroup it will be in bounds its memory; else ways to have memory that counts in no
    process are denied. Has to be called in the process that starts it, and the descriptors kept open until then.
    Raises ConflictError where what the interpreter needs would show the node's own files, or where the dataset has a
    way out in it, and StorageError for a dataset that is not there.
    """
    for need in order.interpreter.needs:
        if not Path(need).is_symlink() and _holds(need, order.folder):
            raise ConflictError(
                f"the interpreter {order.interpreter.executable} needs {need}, which holds this node's own files: "
                "name another in [runs] python, or keep the node in another folder"
            )
    if order.dataset is not None:
        given_as_added(order.dataset.path)
    if level == "bubblewrap":
        if order.dataset is not None:
            no_way_out(order.dataset.path)
        return _in_bubblewrap(order, dict(descriptors), memory_is_held=memory_is_held)
    return _without_namespaces(order, level, dict(descriptors), memory_is_held=memory_is_held)


def data_path(order: JobOrder, level: Level) -> str | None:
    """Return where a plan finds its dataset; null where it got none."""
    if level == "bubblewrap" or order.dataset is None:
        return bubblewrap.data_path(order)
    return order.dataset.path


def own_folder(order: JobOrder, level: Level) -> str | None:
    """Return the folder outside that holds what a job writes, whose size its keeper has to watch.

    Null where the sandbox itself holds it to the limit.
    """
    return None if level == "bubblewrap" else str(Path(order.folder, TMP))


def _in_bubblewrap(order: JobOrder, descriptors: dict[int, int], *, memory_is_held: bool) -> Prepared:
    program = bubblewrap.program()
    if program is None:
        raise StorageError("bubblewrap is not installed any more")
    is_root = os.geteuid() == 0
    user = spare_user() if is_root else os.geteuid()
    group = user if is_root else os.getegid()
    sources = bubblewrap.sources(order)
    lies_at = staging.staged_paths(sources) if is_root else {}
    namespace_at, filter_at, words_at = 7, 8, 9
    words = bubblewrap.options(order, lies_at, namespace=namespace_at, seccomp=filter_at)
    # Read from a file: the words of a command line are there for the plan to read, with the places of the data.
    given = {
        filter_at: seccomp.as_file(seccomp.for_namespaces(memory_is_held=memory_is_held)),
        words_at: _file_of(words),
    }

    def before_exec() -> None:
        nonlocal user, group
        if is_root and not staging.stage(sources, user=user, group=group):
            user, group = 0, 0
            stricter = seccomp.as_file(seccomp.for_namespaces(is_owner=True, memory_is_held=memory_is_held))
            os.dup2(stricter, filter_at, inheritable=True)
        os.dup2(_out_of_the_way(own_namespace(user, group)), namespace_at, inheritable=True)
        if is_root:
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
        # bubblewrap's own two processes count as well.
        _limit(order, processes=order.limits.processes + 2)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)

    return Prepared(
        level="bubblewrap",
        argv=[program, "--args", str(words_at), "--", *_interpreter(order, bubblewrap.RUNTIME)],
        env=_environment(order, bubblewrap.TMP),
        pass_fds={**descriptors, **given},
        before_exec=before_exec,
        own_fds=tuple(given.values()),
    )


def _without_namespaces(
    order: JobOrder, level: Level, descriptors: dict[int, int], *, memory_is_held: bool
) -> Prepared:
    tmp = str(Path(order.folder, TMP))
    Path(tmp).mkdir(mode=0o700, exist_ok=True)
    version = landlock.abi() if level == "landlock" else 0
    readable = [*order.interpreter.needs, order.runtime]
    if order.dataset is not None:
        readable.append(order.dataset.path)

    # Here the limit counts all that this user has. It bounds what is forked between two looks of the keeper, who counts
    # the job alone; that some more of the others may begin meanwhile must not be the plan's failure.
    others = tasks_of(os.getuid()) if os.getuid() else 0  # root is exempt from it

    def before_exec() -> None:
        os.chdir(tmp)
        _limit(order, processes=order.limits.processes + others + others // 4)
        kernel.no_new_privileges()
        kernel.drop_capabilities()
        if level == "landlock":
            landlock.restrict(readable=readable, writable=[tmp], devices=[*bubblewrap.DEVICES, *order.devices])
        program = seccomp.without_namespaces(
            os.getpid(),
            signals_are_scoped=version >= 6,
            truncation_is_covered=version >= 3,
            memory_is_held=memory_is_held,
        )
        seccomp.install(program)

    return Prepared(
        level=level,
        argv=_interpreter(order, order.runtime),
        env=_environment(order, tmp),
        pass_fds=descriptors,
        before_exec=before_exec,
    )


def _heard(told: int, timeout_s: float) -> bytes | None:
    """Return what comes through a pipe until its end; None when that does not come in time."""
    deadline, text = Deadline(timeout_s), b""
    with open(told, "rb", buffering=0) as file:
        poller = select.poll()
        poller.register(file, select.POLLIN)
        while poller.poll(deadline.left_s() * 1000):
            piece = file.read(4096)
            if not piece:
                return text
            text += piece
    return None


def _interpreter(order: JobOrder, runtime: str) -> list[str]:
    return [order.interpreter.executable, "-I", "-S", "-B", "-X", "utf8", f"{runtime}/{MAIN}"]


def _environment(order: JobOrder, home: str) -> dict[str, str]:
    return {
        "PATH": str(Path(order.interpreter.executable).parent),
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        "FEDMON_JOB_ID": order.job_id,
    }


def _limit(order: JobOrder, *, processes: int) -> None:
    """Set the limits of each process; those of the whole job are kept by its cgroup and its keeper."""
    bear(mark_of(order.folder))
    limits = order.limits
    cpu_s = int(limits.cpu_s) + 1
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, limits.tmp_bytes),
        # Writable private memory; unlike RLIMIT_AS it does not count what CUDA and others only reserve.
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(what)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (most, most))


def _forget_signals() -> None:
    """Have the program begin with every signal as it is by default, and none held back."""
    for each in signal.valid_signals():
        with suppress(OSError, ValueError):
            if signal.getsignal(each) not in (signal.SIG_DFL, None):
                signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _out_of_the_way(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)


def _file_of(words: list[str]) -> int:
    descriptor = os.memfd_create("options", os.MFD_CLOEXEC)
    os.write(descriptor, b"".join(os.fsencode(word) + b"\0" for word in words))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _holds(folder: str, path: str) -> bool:
    outer, inner = os.path.realpath(folder), os.path.realpath(path)
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def given_as_added(dataset: str) -> None:
    """Raise ConflictError when a path leads through a link: where to is decided by who made that, not by the owner."""
    if os.path.realpath(dataset) != dataset:
        raise ConflictError(f"the dataset at {dataset} is reached through a link now: its owner has to add it anew")


def no_way_out(dataset: str) -> None:
    """Look through a file or folder for what a process outside may listen at.

    Raises ConflictError that names it, and StorageError for a dataset that is not there or cannot be read.
    """
    try:
        mode = Path(dataset).stat().st_mode
        if not stat.S_ISDIR(mode):
            if not stat.S_ISREG(mode):
                _refuse(dataset)
            return
        folders = [dataset]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                        _refuse(entry.path)
    except OSError as error:
        raise StorageError(f"the dataset at {dataset} cannot be given to a plan: {error.strerror}") from error


def _refuse(path: str) -> None:
    raise ConflictError(
        f"the dataset holds {path}, which is neither file nor folder: a plan could reach another process through it; "
        "take it away"
    )
