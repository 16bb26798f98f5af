"""Filters of system calls, assembled as programs of the kernel's packet filter (BPF).

Source: Linux Documentation/userspace-api/seccomp_filter.rst and include/uapi/linux/{filter,seccomp}.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterable, Sequence

import msgspec

from fedmon.node.runs.sandbox import kernel

ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
"""As the kernel names them to a filter (AUDIT_ARCH)."""

_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, None),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "lchown": (94, None),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "truncate": (76, 45),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vhangup": (153, 58),
    "vserver": (236, None),
}


def machine() -> str:
    """Return this machine's architecture; raises OSError for one that no filter of ours knows."""
    found = os.uname().machine
    if found not in ARCHITECTURES:
        raise OSError(errno.ENOTSUP, f"no seccomp filter for {found}, only for {' and '.join(ARCHITECTURES)}")
    return found


def number(name: str, architecture: str) -> int | None:
    """Return the number of a call; null where the architecture does not have it."""
    return _NUMBERS[name][list(ARCHITECTURES).index(architecture)]


_NAMESPACES = (0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000)
"""CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET. Source: include/uapi/linux/sched.h."""

# What reads or changes other processes, mounts, modules, clocks, keys or the machine, or has had many holes.
_NEVER = (
    *("_sysctl", "acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "create_module"),
    *("delete_module", "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_kernel_syms"),
    *("init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp"),
    *("kexec_file_load", "kexec_load", "keyctl", "listmount", "lookup_dcookie", "memfd_secret"),
    *(
        "migrate_pages",
        "modify_ldt",
        "mount",
        "mount_setattr",
        "move_mount",
        "move_pages",
        "name_to_handle_at",
        "nfsservctl",
        "open_by_handle_at",
    ),
    *("open_tree", "open_tree_attr", "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise"),
    *("process_mrelease", "process_vm_readv", "process_vm_writev", "ptrace", "query_module", "quotactl", "quotactl_fd"),
    *("reboot", "request_key", "setdomainname", "sethostname", "setns", "settimeofday", "statmount", "swapoff"),
    *("swapon", "sysfs", "syslog", "umount2", "unshare", "uselib", "userfaultfd", "ustat", "vhangup", "vserver"),
)
# Landlock knows nothing of owners, modes and times: a plan that runs as the node's user could close its files.
_OF_FILES = (
    *("chmod", "chown", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "file_setattr", "fremovexattr"),
    *("fsetxattr", "futimesat", "lchown", "lremovexattr", "lsetxattr", "removexattr", "removexattrat", "setxattr"),
    *("setxattrat", "utime", "utimensat", "utimes"),
)
_WATCHES = ("inotify_init", "inotify_init1")
"""Landlock does not cover them: names of files that the node makes and changes could be heard."""
_PROCESS = {"setpriority": 0, "ioprio_set": 1}
"""PRIO_PROCESS and IOPRIO_WHO_PROCESS."""
# What is shared by all processes of a user or of the machine, outlives the job, and counts in no process.
_SHARED = ("mq_open", "msgget", "semget", "shmget")
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
"""As F_SETOWN of fcntl, for sockets. Source: include/uapi/asm-generic/sockios.h."""
_OF_INODES = (0x4004_6602, 0x4008_6602, 0x401C_5820, 0x4004_7602, 0x4008_7602, 0x4080_6685)
"""FS_IOC32_SETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC32_SETVERSION, FS_IOC_SETVERSION, FS_IOC_ENABLE_VERITY:
the owner of a file needs no more than to read it. Source: include/uapi/linux/fs.h and fsverity.h."""
_RLIMIT_LOCKS = 10
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_AS_IT_IS = 0xFFFF_FFFF
"""personality(2) with this value only asks."""

_LOAD, _AND = 0x20, 0x54
_IF_EQUAL, _IF_AT_LEAST = 0x15, 0x35
_ALWAYS, _RETURN = 0x05, 0x06
_KILL, _ALLOW, _ERROR = 0x8000_0000, 0x7FFF_0000, 0x0005_0000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x4000_0000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

_EVERY_BIT = 0xFFFF_FFFF


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of a call (0 to 5), its lower 32 bits after ``mask``: one of ``values``, or with ``other`` none."""

    argument: int
    values: Sequence[int]
    mask: int = _EVERY_BIT
    other: bool = False


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """A call that fails with ``error`` when ``where`` holds, or always."""

    name: str
    where: Where | None = None
    error: int = errno.EPERM


def assemble(rules: Iterable[Denied], architecture: str) -> bytes:
    """Return the program that denies what the rules say, and ends a process that calls by another architecture."""
    program = [
        _statement(_LOAD, _ARCHITECTURE_AT),
        _jump(_IF_EQUAL, ARCHITECTURES[architecture], 1, 0),
        _statement(_RETURN, _KILL),
        _statement(_LOAD, _NUMBER_AT),
    ]
    if architecture == "x86_64":
        program += [_jump(_IF_AT_LEAST, _X32, 0, 1), _statement(_RETURN, _KILL)]
    for rule in rules:
        called = number(rule.name, architecture)
        if called is not None:
            program += _rule(called, rule)
    return b"".join([*program, _statement(_RETURN, _ALLOW)])


def install(program: bytes) -> None:
    """Put a filter over this process and all that it will start; needs no_new_privs or CAP_SYS_ADMIN."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    given = ctypes.create_string_buffer(header, len(header))
    kernel.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(given))


def _rule(called: int, rule: Denied) -> list[bytes]:
    refuse = _statement(_RETURN, _ERROR | rule.error)
    if rule.where is None:
        return [_jump(_IF_EQUAL, called, 0, 1), refuse]
    where = rule.where
    body = [_statement(_LOAD, _ARGUMENTS_AT + 8 * where.argument)]  # both architectures are little-endian
    if where.mask != _EVERY_BIT:
        body.append(_statement(_AND, where.mask))
    # A match jumps over the tests that follow and one statement more: the refusal, or the jump over it.
    body += [_jump(_IF_EQUAL, value, len(where.values) - index, 0) for index, value in enumerate(where.values)]
    body += [refuse] if where.other else [_statement(_ALWAYS, 1), refuse]
    reload = _statement(_LOAD, _NUMBER_AT)
    return [_jump(_IF_EQUAL, called, 0, len(body) + 1), *body, reload]


def _statement(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value & _EVERY_BIT)


def _jump(code: int, value: int, if_so: int, if_not: int) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value & _EVERY_BIT)


def for_namespaces(*, is_owner: bool = False, memory_is_held: bool = False) -> bytes:
    """Return the filter that goes with namespaces; see rules_for_namespaces."""
    return assemble(rules_for_namespaces(is_owner=is_owner, memory_is_held=memory_is_held), machine())


def without_namespaces(
    pid: int, *, signals_are_scoped: bool, truncation_is_covered: bool, memory_is_held: bool = False
) -> bytes:
    """Return the filter for a process ``pid`` that shares the node's user, network and tables of processes."""
    rules = rules_without_namespaces(
        pid,
        signals_are_scoped=signals_are_scoped,
        truncation_is_covered=truncation_is_covered,
        memory_is_held=memory_is_held,
    )
    return assemble(rules, machine())


def rules_for_namespaces(*, is_owner: bool = False, memory_is_held: bool = False) -> list[Denied]:
    """Return what is denied where there are namespaces: of sockets all families but AF_UNIX, which is local there.

    ``is_owner`` is for a plan that is outside who owns the machine's files, devices among them, which it sees.
    ``memory_is_held`` tells of a cgroup that bounds memory, wherever it is.
    """
    sockets = [
        Denied(name=name, where=Where(argument=0, values=(socket.AF_UNIX,), other=True), error=errno.EACCES)
        for name in ("socket", "socketpair")
    ]
    return [*_always(memory_is_held), *sockets, *(Denied(name=name) for name in _OF_FILES if is_owner)]


def rules_without_namespaces(
    pid: int, *, signals_are_scoped: bool, truncation_is_covered: bool, memory_is_held: bool = False
) -> list[Denied]:
    """Return what is denied beside Landlock; it covers signals to others from ABI 6, truncation from ABI 3 on."""
    own = Where(argument=0, values=(0, pid), other=True)
    rules = [
        *_always(memory_is_held),
        Denied(name="socket", error=errno.EACCES),
        Denied(name="socketpair", where=Where(argument=0, values=(socket.AF_UNIX,), other=True), error=errno.EACCES),
        *(Denied(name=name) for name in (*_OF_FILES, *_WATCHES)),
        Denied(name="ioctl", where=Where(argument=1, values=(_FIOSETOWN, _SIOCSPGRP, *_OF_INODES))),
        Denied(name="fcntl", where=Where(argument=1, values=(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX))),
        *(Denied(name=name, where=own) for name in _OF_PROCESSES),
    ]
    for name in ("setpriority", "ioprio_set"):
        # The first argument says what the second counts: a process, and not a group or a user.
        rules.append(Denied(name=name, where=Where(argument=0, values=(_PROCESS[name],), other=True)))
        rules.append(Denied(name=name, where=Where(argument=1, values=(0, pid), other=True)))
    if not signals_are_scoped:
        by_number = ("kill", "tgkill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open")
        rules += [Denied(name=name, where=own) for name in by_number]
        rules.append(Denied(name="pidfd_send_signal"))
    if not truncation_is_covered:
        rules.append(Denied(name="truncate"))
    return rules


# Those that reach any process of the same user by its id.
_OF_PROCESSES = ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")


def _always(memory_is_held: bool) -> list[Denied]:  # noqa: FBT001 - of this file alone
    kind = Where(argument=1, values=(stat.S_IFCHR, stat.S_IFBLK), mask=stat.S_IFMT(0o177777))
    return [
        *(Denied(name=name) for name in (*_NEVER, *_SHARED)),
        # The mark that its processes are known by; see mark.py.
        Denied(name="setrlimit", where=Where(argument=0, values=(_RLIMIT_LOCKS,))),
        Denied(name="prlimit64", where=Where(argument=1, values=(_RLIMIT_LOCKS,))),
        # What is written into files without names counts as the memory of no process.
        *([] if memory_is_held else [Denied(name="memfd_create", error=errno.ENOSYS)]),
        # The C library falls back to clone, whose flags a filter can see.
        Denied(name="clone3", error=errno.ENOSYS),
        *(Denied(name="clone", where=Where(argument=0, values=(flag,), mask=flag)) for flag in _NAMESPACES),
        Denied(name="ioctl", where=Where(argument=1, values=(_TIOCSTI, _TIOCLINUX))),
        Denied(name="mknod", where=kind),
        Denied(name="mknodat", where=Where(argument=2, values=kind.values, mask=kind.mask)),
        Denied(name="personality", where=Where(argument=0, values=(0, _AS_IT_IS), other=True)),
    ]


def as_file(program: bytes) -> int:
    """Return a descriptor of a file that holds a filter, as bubblewrap reads it."""
    descriptor = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(descriptor, program)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
