"""What the filters of system calls answer, on both architectures; their programs are run here step by step."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedmon.node.runs.sandbox import landlock, seccomp
from tests.support.requirements import require

ALLOWED, KILLED = "allowed", "killed"
BOTH = sorted(seccomp.ARCHITECTURES)


def _answer(program: bytes, architecture: int, call: int, arguments: tuple[int, ...] = ()) -> str | int:
    """Run a program as the kernel does; return allowed, killed or the error."""
    given = struct.pack("<IIQ6Q", call, architecture, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator, at = 0, 0
    while True:
        operation, if_so, if_not, value = code[at]
        at += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("<I", given, value)[0]
            case 0x54:
                accumulator &= value
            case 0x05:
                at += value
            case 0x15:
                at += if_so if accumulator == value else if_not
            case 0x35:
                at += if_so if accumulator >= value else if_not
            case 0x06:
                if value in (0x7FFF_0000, 0x8000_0000):
                    return ALLOWED if value == 0x7FFF_0000 else KILLED
                return int(value) & 0xFFFF
            case _:
                pytest.fail(f"operation {operation:#x}")


def _ask(program: bytes, architecture: str, name: str, *arguments: int) -> str | int:
    number = seccomp.number(name, architecture)
    assert number is not None
    return _answer(program, seccomp.ARCHITECTURES[architecture], number, arguments)


@pytest.fixture(params=BOTH)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_conditions_hold_on_the_argument_that_they_name(architecture: str) -> None:
    rules = [
        seccomp.Denied(name="socket", argument=0, values=(1, 2), other=True, error=13),
        seccomp.Denied(name="ioctl", argument=1, values=(0x5412, 0x541C)),
        seccomp.Denied(name="clone", argument=0, values=(0x1000_0000,), mask=0x1000_0000),
        seccomp.Denied(name="mount"),
    ]
    program = seccomp.assemble(rules, architecture)
    answers = [
        _ask(program, architecture, name, *arguments)
        for name, *arguments in (
            ("socket", 1), ("socket", 2), ("socket", 3), ("socket", 0),
            ("ioctl", 5, 0x5412), ("ioctl", 5, 0x541C), ("ioctl", 0x5412, 5),
            ("clone", 0x1000_0011), ("clone", 0x11), ("mount",), ("fchmod",),
        )
    ]  # fmt: skip
    expected = [ALLOWED, ALLOWED, 13, 13, 1, 1, ALLOWED, 1, ALLOWED, 1, ALLOWED]
    assert expected == answers


def test_calls_by_another_architecture_end_the_process(architecture: str) -> None:
    program = seccomp.assemble([], architecture)
    for each in (0x4000_0003, 0x4000_0028, *seccomp.ARCHITECTURES.values(), 0):  # i386, arm
        expected = ALLOWED if each == seccomp.ARCHITECTURES[architecture] else KILLED
        assert expected == _answer(program, each, 39)


def test_calls_of_x32_end_the_process() -> None:
    program = seccomp.assemble([], "x86_64")
    assert _answer(program, seccomp.ARCHITECTURES["x86_64"], 0x4000_0000 | 39) == KILLED


@pytest.mark.parametrize("is_scoped", [True, False])
def test_without_namespaces_a_process_reaches_only_itself(is_scoped: bool) -> None:
    here = seccomp.machine()
    program = seccomp.assemble(
        seccomp.rules_without_namespaces(77, signals_are_scoped=is_scoped, truncation_is_covered=is_scoped)
    )
    signalled = ALLOWED if is_scoped else errno.EPERM
    for name, arguments, expected in (
        ("kill", (77, 9), ALLOWED),
        ("kill", (0, 9), ALLOWED),
        ("kill", (78, 9), signalled),
        ("kill", (-1 & 0xFFFF_FFFF, 9), signalled),
        ("pidfd_send_signal", (3, 9), signalled),
        ("prlimit64", (0, 1), ALLOWED),
        ("prlimit64", (78, 1), errno.EPERM),
        ("setpriority", (0, 78), errno.EPERM),
        ("setpriority", (0, 0), ALLOWED),
        ("setpriority", (2, 0), errno.EPERM),  # all processes of the user
        ("socket", (socket.AF_UNIX,), errno.EACCES),
        ("socketpair", (socket.AF_UNIX,), ALLOWED),
        ("socketpair", (socket.AF_INET,), errno.EACCES),
        ("fcntl", (3, 8), errno.EPERM),
        ("fcntl", (3, 1030), ALLOWED),
        ("truncate", (0, 0), signalled),
        ("ioctl", (3, 0x8901), errno.EPERM),  # FIOSETOWN
        ("ioctl", (3, 0x4008_6602), errno.EPERM),  # FS_IOC_SETFLAGS
        ("ioctl", (3, 0x5421), ALLOWED),  # FIONBIO
        ("setrlimit", (10, 0), errno.EPERM),  # RLIMIT_LOCKS, the mark of the job
        ("prlimit64", (0, 10), errno.EPERM),
        ("setrlimit", (4, 0), ALLOWED),
    ):
        assert expected == _ask(program, here, name, *arguments), (name, arguments)


@pytest.mark.parametrize("is_held", [True, False])
def test_memory_that_counts_in_no_process_is_had_where_a_cgroup_holds_it(is_held: bool) -> None:
    here = seccomp.machine()
    for rules in (
        seccomp.rules_for_namespaces(memory_is_held=is_held),
        seccomp.rules_without_namespaces(
            77, signals_are_scoped=True, truncation_is_covered=True, memory_is_held=is_held
        ),
    ):
        program = seccomp.assemble(rules)
        assert _ask(program, here, "memfd_create") == (ALLOWED if is_held else errno.ENOSYS)
        assert [_ask(program, here, name) for name in ("shmget", "msgget", "memfd_secret")] == [errno.EPERM] * 3


def test_numbers_are_those_of_this_machines_headers() -> None:
    headers = {
        "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        "aarch64": Path("/usr/include/asm-generic/unistd.h"),
    }
    require(any(each.exists() for each in headers.values()), "no headers of the kernel are installed")
    checked = 0
    for architecture, path in headers.items():
        text = path.read_text() if path.exists() else ""
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text):
            if name in seccomp._NUMBERS:
                checked += 1
                assert int(number) == seccomp.number(name, architecture), (architecture, name)
    assert checked > 50


def test_every_call_that_a_filter_names_is_known_and_every_known_one_is_named() -> None:
    weakest = seccomp.rules_without_namespaces(1, signals_are_scoped=False, truncation_is_covered=False)
    named = {rule.name for rule in (*weakest, *seccomp.rules_for_namespaces(is_owner=True))}
    assert set(seccomp._NUMBERS) == named


def test_rights_of_landlock_grow_with_its_version() -> None:
    assert [landlock.rights(version).bit_count() for version in range(1, 8)] == [13, 14, 15, 15, 16, 16, 16]


def test_a_machine_without_filters_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))

    with pytest.raises(OSError, match="no seccomp filter for riscv64, only for "):
        seccomp.assemble([])


def test_capabilities_are_dropped_where_proc_holds_processes_alone() -> None:
    script = 'mount -t proc -o subset=pid proc /proc && exec "$@"'
    unshared = ["unshare", "-m", "sh", "-c", script, "sh"]
    require(subprocess.run([*unshared, "true"], capture_output=True).returncode == 0, "such a /proc cannot be mounted")
    drops = "from fedmon.node.runs.sandbox.kernel import drop_capabilities; drop_capabilities()"
    tells = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')])"

    words = [*unshared, sys.executable, "-c", f"{drops}; {tells}"]
    done = subprocess.run(words, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == (f"{['0' * 16] * 5}\n", "")
