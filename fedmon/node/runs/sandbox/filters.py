"""Which system calls a plan is denied: what could lead out of any confinement, and what the level itself lacks."""

from __future__ import annotations

import errno
import os
import socket
import stat

from fedmon.node.runs.sandbox.seccomp import Denied, Where, assemble
from fedmon.node.runs.sandbox.syscalls import machine

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
