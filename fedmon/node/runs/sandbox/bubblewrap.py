"""A job in its own namespaces, made by bubblewrap: files that are not given to it do not exist there.

By itself bubblewrap makes its user namespace after RLIMIT_NPROC must be set, which then counts all processes of the
node's user on this machine. In a namespace from before it counts those of the job alone. Real root is exempt from that
limit: a node that runs as root starts a job as a user who owns nothing. That user could not read private files or data
below a closed folder. So root clones the given files, read-only and with that user as their owner (an idmapped mount),
into a folder that only this process has. Source: mount_setattr(2), open_tree(2), move_mount(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from fedmon.node.runs.folder import JobOrder
from fedmon.node.runs.sandbox import kernel, seccomp

RUNTIME, DATA, TMP = "/runtime", "/data", "/tmp"  # noqa: S108 - the sandbox's own
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
HIDDEN_IN_PROC = (
    *("acpi", "asound", "interrupts", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list"),
    "timer_stats",
)
"""Containers hide the same. Source: Moby, oci/defaults.go, masked paths."""
INSIDE = 65534
"""The user and group of a plan inside."""
STAGE = "/tmp"  # noqa: S108 - covered by a file system of our own
"""Covered in the mount namespace of the job's first process alone; every machine has it."""

# systemd's docs/UIDS-GIDS.md assigns 1879048192 to 2147483647 to no user.
_FIRST_SPARE = 1_879_048_192
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_AT_SYMLINK_NOFOLLOW = 0x100
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 0x1, 0x2, 0x4, 0x10_0000


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that exists inside; ``public`` if all users may read it, as an installed program."""

    path: str
    inside: str
    public: bool = False


def program() -> str | None:
    """Return the path of bubblewrap; None if it is not installed."""
    return shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")


def data_path(order: JobOrder) -> str | None:
    """Return the path of the dataset for the plan; None without a dataset."""
    if order.dataset is None:
        return None
    path = order.dataset.path
    return f"{DATA}/{Path(path).name}" if order.level == "bubblewrap" else path


def given(order: JobOrder) -> list[Given]:
    """Return the files and folders that exist inside, without links, which are made again."""
    needs = order.interpreter.needs
    found = [Given(path=each, inside=each, public=True) for each in needs if not Path(each).is_symlink()]
    found.append(Given(path=order.runtime, inside=RUNTIME))
    inside = data_path(order)
    if order.dataset is not None and inside is not None:
        found.append(Given(path=order.dataset.path, inside=inside))
    return found


def options(order: JobOrder, sources: Iterable[Given], *, namespace_at: int, filter_at: int) -> list[str]:
    """Return bubblewrap's options, with the descriptors of a user namespace and of a filter of system calls."""
    is_root = os.geteuid() == 0
    words = [
        *("--userns", str(namespace_at)),
        # bubblewrap would leave that descriptor to the plan; one to block on it reads (which fails at once) and closes.
        *("--block-fd", str(namespace_at)),
        *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--add-seccomp-fd", str(filter_at)),
        # One file system with one size for all files of a job, semaphores and shared memory too. It comes first,
        # because an interpreter may lie below /tmp.
        *("--size", str(order.limits.tmp_bytes), "--tmpfs", TMP),
    ]
    for need in order.interpreter.needs:
        if Path(need).is_symlink():
            words += ["--symlink", str(Path(need).readlink()), need]
    for number, each in enumerate(sources):
        words += ["--ro-bind", f"{STAGE}/{number}" if is_root else each.path, each.inside]
    words += ["--proc", "/proc", *_covers(), "--dir", "/dev"]
    for device in (*DEVICES, *order.devices):
        words += ["--dev-bind-try", device, device]
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        words += ["--symlink", f"/proc/self/fd{target}", f"/dev/{name}"]
    words += ["--symlink", TMP, "/dev/shm"]  # noqa: S108
    # Settings of the machine lie below /proc, and a user who is root outside may write them without any capability.
    return [*words, "--remount-ro", "/proc", "--remount-ro", "/", "--chdir", TMP]


def _covers() -> Iterator[str]:
    """Yield the options that hide files of /proc: a covered file cannot be opened, a covered folder is empty."""
    for path in (Path("/proc", name) for name in HIDDEN_IN_PROC):
        if path.is_dir():
            yield from ("--tmpfs", str(path), "--remount-ro", str(path))
        elif path.exists():
            yield from ("--ro-bind", "/dev/null", str(path))


def prepare(sources: Iterable[Given], *, memory_is_held: bool) -> tuple[int, bytes]:
    """Make this process ready for bubblewrap; return the descriptor of its user namespace, and the plan's filter.

    Root stages the files and becomes a user who owns nothing, if that one can read them. Raises OSError.
    """
    user, group, is_owner = os.geteuid(), os.getegid(), False
    is_root = user == 0
    if is_root:
        user = group = _spare_user()
        if is_owner := not _stage(sources, user=user, group=group):
            user = group = 0
    namespace = own_namespace(user, group)
    if is_root:
        _become_user(user, group)
    else:
        kernel.drop_capabilities()  # a node may have some to read counters, and bubblewrap refuses to run with them
    return namespace, seccomp.assemble(seccomp.rules_for_namespaces(is_owner=is_owner, memory_is_held=memory_is_held))


def _spare_user() -> int:
    """Return a user id that owns nothing on this machine, different for each living process."""
    chosen = _FIRST_SPARE + os.getpid()
    maps = (map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines())
    # A container may have few ids.
    return chosen if any(first <= chosen < first + count for first, _, count in maps) else INSIDE


def own_namespace(user: int, group: int) -> int:
    """Return a descriptor of a new user namespace of ``user``, its only user, who is INSIDE there.

    No further user namespace can be made in it. Needs root for a user other than this process's own.
    Raises OSError where this kernel or its administrator allows no user namespaces.
    """

    def become() -> None:
        if user != os.geteuid():
            _become_user(user, group)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # a change of user clears it, and then /proc/self belongs to root

    def settle() -> None:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{INSIDE} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{INSIDE} {group} 1")
        with contextlib.suppress(OSError):  # /proc/sys may be read-only in a container; seccomp denies it too
            Path("/proc/sys/user/max_user_namespaces").write_text("0")

    return _namespace(become, settle)


def _become_user(user: int, group: int) -> None:
    """Change to another user for good; needs root."""
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def _namespace(
    become: Callable[[], None] = lambda: None, settle: Callable[[], None] = lambda: None, maps: tuple[str, ...] = ()
) -> int:
    """Make a user namespace in a child, and keep it by its descriptor after the child's end."""
    ready, say_ready = os.pipe()
    done, say_done = os.pipe()
    child = os.fork()
    if child == 0:
        number = 0
        try:
            os.close(say_done)
            become()
            kernel.unshare(kernel.CLONE_NEWUSER)
            settle()
        except OSError as error:
            number = error.errno or 1
        finally:
            os.write(say_ready, bytes([number]))
            os.read(done, 1)
            os._exit(0)
    os.close(say_ready)
    os.close(done)
    try:
        answer = os.read(ready, 1)
        number = answer[0] if answer else errno.EPERM  # it was killed, as by a filter of system calls
        if number:
            raise OSError(number, f"no user namespace: {os.strerror(number)}")
        for name, text in zip(("uid_map", "gid_map"), maps, strict=False):
            Path(f"/proc/{child}/{name}").write_text(text)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(say_done)
        os.waitpid(child, 0)


def _stage(sources: Iterable[Given], *, user: int, group: int) -> bool:
    """Mount everything in a mount namespace of this process; return True if ``user`` can read all of it.

    That fails if a file system has no idmapped mounts and its files are not open to all users. Raises OSError for a
    missing file.
    """
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    shifts: dict[tuple[int, int], int] = {}
    clones = []
    is_readable = True
    for source in sources:
        about = Path(source.path).lstat()
        if stat.S_ISLNK(about.st_mode):
            raise OSError(errno.ELOOP, "it became a link", source.path)
        flags = _OPEN_TREE_CLONE | kernel.AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW | os.O_CLOEXEC
        tree = kernel.syscall(kernel.OPEN_TREE, kernel.AT_FDCWD, os.fsencode(source.path), flags)
        _protect(tree, None)
        if not _is_open(source, about):
            owner = (about.st_uid, about.st_gid)
            try:
                if owner not in shifts:
                    shifts[owner] = _namespace(maps=(f"{owner[0]} {user} 1", f"{owner[1]} {group} 1"))
                _protect(tree, shifts[owner])
            except OSError:
                is_readable = False
        clones.append((tree, stat.S_ISDIR(about.st_mode)))
    kernel.mount("tmpfs", STAGE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755,size=1m")
    for number, (tree, is_folder) in enumerate(clones):
        target = Path(STAGE, str(number))
        target.mkdir() if is_folder else target.touch()
        kernel.syscall(kernel.MOVE_MOUNT, tree, b"", kernel.AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    for each in (*(tree for tree, _ in clones), *shifts.values()):
        os.close(each)
    return is_readable


def _is_open(source: Given, about: os.stat_result) -> bool:
    """Return True if all users may read it; a folder that is not public may hold closed files."""
    wanted = 0o5 if stat.S_ISDIR(about.st_mode) else 0o4
    return about.st_mode & wanted == wanted and (source.public or not stat.S_ISDIR(about.st_mode))


def _protect(tree: int, shifted: int | None) -> None:
    """Set the attributes of a cloned tree: read-only, and under another owner if ``shifted`` is given."""
    wanted = _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV
    attributes = (ctypes.c_uint64 * 4)(wanted | (0 if shifted is None else _ATTR_IDMAP), 0, 0, shifted or 0)
    flags, size = kernel.AT_EMPTY_PATH | kernel.AT_RECURSIVE, ctypes.sizeof(attributes)
    kernel.syscall(kernel.MOUNT_SETATTR, tree, b"", flags, attributes, size)
