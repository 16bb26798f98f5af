"""Filters of system calls, assembled as programs of the kernel's packet filter (BPF).

Source: Linux Documentation/userspace-api/seccomp_filter.rst and include/uapi/linux/{filter,seccomp}.h.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import socket
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from fedmon.node.runs.sandbox import kernel

ARCHITECTURES = MappingProxyType({"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7})
"""As the kernel names them to a filter (AUDIT_ARCH); tables of calls hold a number, or None, for each in this order."""
_Numbers = Mapping[str, tuple[int | None, int | None]]

# Calls that read or change other processes, mounts, modules, clocks, keys or the machine, that use memory which counts
# in no process, or that have had many holes.
_NEVER: _Numbers = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}

# Landlock does not cover owners, modes and times: a plan that runs as the node's user could close its files.
_OF_FILES: _Numbers = {
    "chmod": (90, None),
    "chown": (92, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "file_setattr": (469, 469),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "futimesat": (261, None),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}

# Landlock does not cover them: they tell the names of files that the node makes and changes.
_WATCHES: _Numbers = {
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
}

# Those that reach any process of the same user by its id.
_OF_PROCESSES: _Numbers = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
}

_SIGNALS: _Numbers = {
    "kill": (62, 129),
    "pidfd_open": (434, 434),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tgkill": (234, 131),
    "tkill": (200, 130),
}

# Denied with some arguments only, or on some machines.
_SOMETIMES: _Numbers = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "memfd_create": (319, 279),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "personality": (135, 92),
    "pidfd_send_signal": (424, 424),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "truncate": (76, 45),
}

_NUMBERS: _Numbers = {**_NEVER, **_OF_FILES, **_WATCHES, **_OF_PROCESSES, **_SIGNALS, **_SOMETIMES}
_NAMESPACES = (0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000)
"""CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET. Source: include/uapi/linux/sched.h."""
_PROCESS = {"setpriority": 0, "ioprio_set": 1}
"""PRIO_PROCESS and IOPRIO_WHO_PROCESS."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
"""As F_SETOWN of fcntl, for sockets. Source: include/uapi/asm-generic/sockios.h."""
_OF_INODES = (0x4004_6602, 0x4008_6602, 0x401C_5820, 0x4004_7602, 0x4008_7602, 0x4080_6685)
"""FS_IOC32_SETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC32_SETVERSION, FS_IOC_SETVERSION, FS_IOC_ENABLE_VERITY:
the owner of a file can use them with a descriptor for reading. Source: include/uapi/linux/fs.h and fsverity.h."""
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


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """A call that fails with ``error``: always, or by an ``argument`` (0 to 5).

    It fails if the argument's lower 32 bits, after ``mask``, are in ``values``, or with ``other`` if they are not.
    """

    name: str
    argument: int | None = None
    values: Sequence[int] = ()
    mask: int = _EVERY_BIT
    other: bool = False
    error: int = errno.EPERM


_only_local = functools.partial(Denied, argument=0, values=(socket.AF_UNIX,), other=True, error=errno.EACCES)
_device = functools.partial(Denied, values=(stat.S_IFCHR, stat.S_IFBLK), mask=stat.S_IFMT(0o177777))


def machine() -> str:
    """Return this machine's architecture; raises OSError for one without filters."""
    found = os.uname().machine
    if found not in ARCHITECTURES:
        raise OSError(errno.ENOTSUP, f"no seccomp filter for {found}, only for {' and '.join(ARCHITECTURES)}")
    return found


def number(name: str, architecture: str) -> int | None:
    """Return the number of a call; None if the architecture does not have it."""
    return _NUMBERS[name][list(ARCHITECTURES).index(architecture)]


def rules_for_namespaces(*, is_owner: bool = False, memory_is_held: bool = False) -> list[Denied]:
    """Return the denied calls inside namespaces: sockets of all families but AF_UNIX, which is local there.

    ``is_owner`` is for a plan whose user outside owns the machine's files, and devices that it sees. ``memory_is_held``
    is True if a cgroup bounds all memory.
    """
    return [
        *_always(memory_is_held=memory_is_held),
        _only_local(name="socket"),
        _only_local(name="socketpair"),
        *(Denied(name=name) for name in _OF_FILES if is_owner),
    ]


def rules_without_namespaces(
    pid: int, *, signals_are_scoped: bool, truncation_is_covered: bool, memory_is_held: bool = False
) -> list[Denied]:
    """Return the denied calls of a process ``pid`` that shares the node's user, network and tables of processes.

    It goes with Landlock, which covers signals to others from ABI 6, truncation from ABI 3 on.
    """
    of_others = functools.partial(Denied, values=(0, pid), other=True)
    rules = [
        *_always(memory_is_held=memory_is_held),
        Denied(name="socket", error=errno.EACCES),
        _only_local(name="socketpair"),
        *(Denied(name=name) for name in (*_OF_FILES, *_WATCHES)),
        Denied(name="ioctl", argument=1, values=(_FIOSETOWN, _SIOCSPGRP, *_OF_INODES)),
        Denied(name="fcntl", argument=1, values=(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)),
        *(of_others(name=name, argument=0) for name in _OF_PROCESSES),
    ]
    for name, process in _PROCESS.items():
        # The first argument is the kind of the second: a process, and not a group or a user.
        rules += [Denied(name=name, argument=0, values=(process,), other=True), of_others(name=name, argument=1)]
    if not signals_are_scoped:
        rules += [*(of_others(name=name, argument=0) for name in _SIGNALS), Denied(name="pidfd_send_signal")]
    if not truncation_is_covered:
        rules.append(Denied(name="truncate"))
    return rules


def assemble(rules: Iterable[Denied], architecture: str | None = None) -> bytes:
    """Return the program for these rules; it ends a process that makes calls of another architecture.

    The default is this machine's architecture; see `machine`.
    """
    architecture = architecture or machine()
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
    """Filter the calls of this process and of its future children; needs no_new_privs or CAP_SYS_ADMIN."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    given = ctypes.create_string_buffer(header, len(header))
    kernel.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(given))


def _always(*, memory_is_held: bool) -> list[Denied]:
    return [
        *(Denied(name=name) for name in _NEVER),
        # The mark of the processes of a job; see JobFolder.mark.
        Denied(name="setrlimit", argument=0, values=(kernel.RLIMIT_LOCKS,)),
        Denied(name="prlimit64", argument=1, values=(kernel.RLIMIT_LOCKS,)),
        # Bytes in files without names count as the memory of no process.
        *([] if memory_is_held else [Denied(name="memfd_create", error=errno.ENOSYS)]),
        # The C library falls back to clone, whose flags a filter can see.
        Denied(name="clone3", error=errno.ENOSYS),
        *(Denied(name="clone", argument=0, values=(flag,), mask=flag) for flag in _NAMESPACES),
        Denied(name="ioctl", argument=1, values=(_TIOCSTI, _TIOCLINUX)),
        _device(name="mknod", argument=1),
        _device(name="mknodat", argument=2),
        Denied(name="personality", argument=0, values=(0, _AS_IT_IS), other=True),
    ]


def _rule(called: int, rule: Denied) -> list[bytes]:
    refuse = _statement(_RETURN, _ERROR | rule.error)
    if rule.argument is None:
        return [_jump(_IF_EQUAL, called, 0, 1), refuse]
    body = [_statement(_LOAD, _ARGUMENTS_AT + 8 * rule.argument)]  # both architectures are little-endian
    if rule.mask != _EVERY_BIT:
        body.append(_statement(_AND, rule.mask))
    # A match jumps over the tests that follow and one statement more: the refusal, or the jump over it.
    body += [_jump(_IF_EQUAL, value, len(rule.values) - index, 0) for index, value in enumerate(rule.values)]
    body += [refuse] if rule.other else [_statement(_ALWAYS, 1), refuse]
    reload = _statement(_LOAD, _NUMBER_AT)
    return [_jump(_IF_EQUAL, called, 0, len(body) + 1), *body, reload]


def _statement(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value & _EVERY_BIT)


def _jump(code: int, value: int, if_so: int, if_not: int) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value & _EVERY_BIT)
