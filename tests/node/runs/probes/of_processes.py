"""Probes that try to see, read, steer or end other processes, and to learn what they were started with."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import struct
from pathlib import Path

from tests.node.runs.probes.calls import call

Facts = dict[str, object]


def _victim(facts: Facts) -> int:
    return int(str(facts["victim"]))


def environment_of_the_launcher(facts: Facts) -> object:
    canary = str(facts["canary"]).encode()
    found = []
    for each in os.listdir("/proc"):
        try:
            if each.isdigit() and canary in Path("/proc", each, "environ").read_bytes():
                found.append(each)
        except OSError:
            continue
    return found


def environment_of_the_first_process(facts: Facts) -> object:
    text = Path(f"/proc/{facts['first']}/environ").read_bytes()
    known = (b"PATH=", b"LANG=", b"HOME=", b"TMPDIR=", b"FEDMON_JOB_ID=", b"PWD=")
    return [each for each in text.split(b"\0") if each and not each.startswith(known)]


def own_environment(facts: Facts) -> object:
    known = {"PATH", "LANG", "HOME", "TMPDIR", "FEDMON_JOB_ID", "PWD", "LC_CTYPE"}
    return sorted(set(os.environ) - known)


def command_line_of_another(facts: Facts) -> object:
    return str(facts["marker"]) in Path(f"/proc/{_victim(facts)}/cmdline").read_text()


def signal_by_number(facts: Facts) -> object:
    os.kill(_victim(facts), signal.SIGWINCH)
    return "sent"


def signal_to_the_group(facts: Facts) -> object:
    os.killpg(_victim(facts), signal.SIGWINCH)
    return "sent"


def signal_by_descriptor(facts: Facts) -> object:
    process = call("pidfd_open", _victim(facts), 0)
    call("pidfd_send_signal", process, signal.SIGWINCH, None, 0)
    return "sent"


def signal_by_ownership(facts: Facts) -> object:
    import fcntl

    reading, _ = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETOWN, _victim(facts))
    return fcntl.fcntl(reading, fcntl.F_GETOWN) == _victim(facts)


def signal_by_ownership_of_a_socket(facts: Facts) -> object:
    import fcntl
    import socket

    own, _ = socket.socketpair()
    for request, asking in ((0x8901, 0x8903), (0x8902, 0x8904)):  # FIOSETOWN, FIOGETOWN; SIOCSPGRP, SIOCGPGRP
        try:
            fcntl.ioctl(own, request, struct.pack("i", _victim(facts)))
            return struct.unpack("i", fcntl.ioctl(own, asking, bytes(4)))[0] == _victim(facts)
        except PermissionError:
            continue
    return None


def attach_as_a_debugger(facts: Facts) -> object:
    call("ptrace", 0x4206, _victim(facts), 0, 0)  # PTRACE_SEIZE
    return "attached"


def trace_a_child(facts: Facts) -> object:
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        call("ptrace", 0x4206, child, 0, 0)
        return "attached"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def memory_of_another(facts: Facts) -> object:
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    start = int(Path(f"/proc/{_victim(facts)}/maps").read_text().split("-")[0], 16)
    remote = (ctypes.c_void_p * 2)(start, 8)
    return call("process_vm_readv", _victim(facts), local, 1, remote, 1, 0)


def memory_file_of_another(facts: Facts) -> object:
    return Path(f"/proc/{_victim(facts)}/mem").open("rb")


def descriptor_of_another(facts: Facts) -> object:
    return call("pidfd_getfd", call("pidfd_open", _victim(facts), 0), 0, 0)


def limits_of_another(facts: Facts) -> object:
    return resource.prlimit(_victim(facts), resource.RLIMIT_CORE, (0, 0))


def priority_of_another(facts: Facts) -> object:
    os.setpriority(os.PRIO_PROCESS, _victim(facts), os.getpriority(os.PRIO_PROCESS, 0))
    return "changed"


def processors_of_another(facts: Facts) -> object:
    os.sched_setaffinity(_victim(facts), os.sched_getaffinity(0))
    return "changed"


def compare_with_another(facts: Facts) -> object:
    call("kcmp", os.getpid(), _victim(facts), 3, 0, 0)
    return "compared"


def inherited_descriptors(facts: Facts) -> object:
    return [number for number in range(7, 1024) if _is_foreign(number)]


def _is_foreign(number: int) -> bool:
    try:
        kind = os.fstat(number).st_mode
    except OSError:
        return False
    # The pipe by which a probe answers is the only one, but for the file in which the library of ctypes keeps code.
    opened = os.readlink(f"/proc/self/fd/{number}")
    return not (stat.S_ISFIFO(kind) or "libffi" in opened or "/tmp/#" in opened)


def keyrings(facts: Facts) -> object:
    return call("keyctl", 0, -3, 0)  # KEYCTL_GET_KEYRING_ID of the session


def keys(facts: Facts) -> object:
    return call("add_key", b"user", b"probe", b"x", 1, -1)  # of the thread


def shared_memory_segments(facts: Facts) -> object:
    return call("shmget", int(str(facts["shm_key"])), 0, 0) >= 0 and "found"


def message_queues(facts: Facts) -> object:
    return call("mq_open", str(facts["mq_name"]).encode(), os.O_RDWR, 0, None)
