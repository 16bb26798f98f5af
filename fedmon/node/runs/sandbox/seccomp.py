"""Filters of system calls, assembled as programs of the kernel's packet filter (BPF).

Source: Linux Documentation/userspace-api/seccomp_filter.rst and include/uapi/linux/{filter,seccomp}.h.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable, Sequence

import msgspec

from fedmon.node.runs.sandbox import kernel
from fedmon.node.runs.sandbox.syscalls import ARCHITECTURES, number

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
