"""Landlock: rules for a process about files and the network, if this kernel has them.

Source: Linux Documentation/userspace-api/landlock.rst and include/uapi/linux/landlock.h, ABI 1 to 7.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from fedmon.node.runs.sandbox import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _IOCTL_DEV = 1, 2, 4, 8, 1 << 15
_MAKE_DEVICES = 1 << 6 | 1 << 11
_ON_FILES = 0b1100_0000_0000_0111
"""The rights that a rule about a single file can give: execute, write, read, truncate, ioctl."""

_CREATE_VERSION, _PATH_BENEATH = 1, 1
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2
_BIND_AND_CONNECT_TCP = 0b11


def abi() -> int:
    """Return the version of this kernel's Landlock; 0 without Landlock."""
    try:
        return kernel.syscall(kernel.LANDLOCK_CREATE_RULESET, None, 0, _CREATE_VERSION)
    except OSError:
        return 0


def rights(version: int) -> int:
    """Return every right over files that a version can deny: 13 at first, then REFER, TRUNCATE and IOCTL_DEV."""
    return (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1


def restrict(*, readable: Iterable[str], writable: Iterable[str], devices: Iterable[str]) -> None:
    """Deny this process, for good, all other files; and TCP, signals and abstract sockets to others.

    Needs no_new_privs. Missing files are left out. Raises OSError without Landlock.
    """
    version = abi()
    handled = rights(version)
    network = _BIND_AND_CONNECT_TCP if version >= 4 else 0
    scopes = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL if version >= 6 else 0
    header = struct.pack("=QQQ", handled, network, scopes)
    length = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = kernel.syscall(kernel.LANDLOCK_CREATE_RULESET, header[:length], length, 0)
    # Not execute, and no device files. REFER, moving between folders, stays inside writable folders.
    for paths, allowed in (
        (readable, _EXECUTE | _READ_FILE | _READ_DIR),
        (devices, _READ_FILE | _WRITE_FILE | _IOCTL_DEV),
        (writable, ~(_EXECUTE | _MAKE_DEVICES)),
    ):
        for path in paths:
            _allow(ruleset, path, allowed & handled)
    kernel.syscall(kernel.LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(os.fstat(beneath).st_mode):
        allowed &= _ON_FILES
    rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, beneath))
    kernel.syscall(kernel.LANDLOCK_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    os.close(beneath)
