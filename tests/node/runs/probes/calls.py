"""System calls by number, for probes."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

_X86_64 = os.uname().machine == "x86_64"
# Name: number on x86_64, number on aarch64.
_NUMBERS = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "clone": (56, 220), "clone3": (435, 435),
    "clock_settime": (227, 112), "delete_module": (176, 106), "fanotify_init": (300, 262), "fsopen": (430, 430),
    "inotify_init1": (294, 26), "io_uring_setup": (425, 425), "iopl": (172, None), "kcmp": (312, 272),
    "keyctl": (250, 219), "mq_open": (240, 180), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "process_vm_readv": (310, 270), "ptrace": (101, 117),
    "quotactl": (179, 60), "setns": (308, 268), "shmget": (29, 194), "swapoff": (168, 225), "syslog": (103, 116),
    "unshare": (272, 97), "userfaultfd": (323, 282), "vhangup": (153, 58), "chroot": (161, 51), "mount": (165, 40),
    "umount2": (166, 39), "sethostname": (170, 161), "setpriority": (141, 140), "process_madvise": (440, 440),
    "sched_setaffinity": (203, 122),
}  # fmt: skip


def call(name: str, *arguments: object) -> int:
    """Make a system call; raises OSError."""
    number = _NUMBERS[name][0 if _X86_64 else 1]
    if number is None:
        raise OSError("not on this machine")
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *passed)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result
