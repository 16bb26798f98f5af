"""Calls of the kernel that Python does not have; each raises OSError as Python's own do."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x0002_0000, 0x1000_0000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 0x4000, 0x4_0000
AT_EMPTY_PATH, AT_RECURSIVE, AT_FDCWD = 0x1000, 0x8000, -100
PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_SET_DUMPABLE = 24, 28, 38, 47, 4
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
RLIMIT_LOCKS = 10
"""Source: Linux include/uapi/asm-generic/resource.h; Python has no name for it."""

# Calls since 2019 have the same number on all architectures.
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446

_CAPABILITY_VERSION_3 = 0x2008_0522
# Each bit with its lock: root is no more than others, and a change of uid brings no capabilities.
# Source: capabilities(7), "The securebits flags".
_SECUREBITS = 0b1110_1111

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def syscall(number: int, *arguments: object) -> int:
    """Make one call; integers are passed as long, bytes and structures by their address."""
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *passed))


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags`` for new ones."""
    _checked(_libc.unshare(flags))


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Attach a file system, or change how one is attached."""
    texts = [None if each is None else os.fsencode(each) for each in (source, target, kind)]
    _checked(_libc.mount(*texts, ctypes.c_ulong(flags), options.encode()))


def prctl(option: int, *arguments: int) -> None:
    """Change how the kernel treats this process; the manual page has the options."""
    filled = [*arguments, 0, 0, 0, 0][:4]
    _checked(_libc.prctl(option, *(ctypes.c_ulong(each) for each in filled)))


def name_process(name: bytes) -> None:
    """Give this process a name of at most 15 bytes. Source: Linux man-pages, prctl(2), PR_SET_NAME."""
    text = ctypes.create_string_buffer(name)
    prctl(PR_SET_NAME, ctypes.addressof(text))


def no_new_privileges() -> None:
    """Ignore set-uid bits and capabilities of files from now on, in children too."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up all capabilities for good, also those that root regains at exec."""
    try:
        for capability in itertools.count():  # a /proc of processes alone does not tell the last one
            prctl(PR_CAPBSET_DROP, capability)
    except PermissionError:
        pass  # an ordinary user has none, and no_new_privs keeps it so
    except OSError as error:
        if error.errno != errno.EINVAL:  # this kernel has no more of them
            raise
        prctl(PR_SET_SECUREBITS, _SECUREBITS)
    prctl(PR_CAP_AMBIENT, 4)  # clear all
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()))


def close_on_exec() -> None:
    """Close all descriptors at exec."""
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists this folder
            os.set_inheritable(int(each.name), False)  # noqa: FBT003 - os takes no name for it


def sealed(name: str, content: bytes | memoryview) -> int:
    """Return a descriptor of sealed bytes in memory, at their start; the caller closes it."""
    with os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        file.seek(0)
        return os.dup(file.fileno())


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
