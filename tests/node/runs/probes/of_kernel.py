"""Probes that try to get rights, leave the confinement, or use calls of the kernel that a plan has no use for."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import resource
import stat
import subprocess
from pathlib import Path

from tests.node.runs.probes.calls import call, libc

Facts = dict[str, object]
_NEWNS, _NEWUSER, _NEWNET = 0x2_0000, 0x1000_0000, 0x4000_0000


def _tmp() -> str:
    return os.environ.get("TMPDIR", "/tmp")


def become_root(facts: Facts) -> object:
    with contextlib.suppress(OSError):
        os.setuid(0)
    facts_of = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return facts_of["CapEff"].strip("0")


def rights_of_root(facts: Facts) -> object:
    new = Path(_tmp(), "owned")
    new.touch()
    os.chown(new, 12345, 12345)
    return "given away"


def set_uid_program(facts: Facts) -> object:
    return subprocess.run(["/usr/bin/su", "--version"], capture_output=True, check=True, timeout=5).stdout


def shell(facts: Facts) -> object:
    return subprocess.run(["/bin/sh", "-c", "echo out"], capture_output=True, check=True, timeout=5).stdout


def nested_bubblewrap(facts: Facts) -> object:
    words = ["bwrap", "--ro-bind", "/", "/", "--unshare-user", "--uid", "0", "/bin/true"]
    return subprocess.run(words, check=True, timeout=5, env={"PATH": "/usr/bin:/bin"}).returncode == 0


def user_namespace(facts: Facts) -> object:
    return call("unshare", _NEWUSER) == 0


def mount_namespace(facts: Facts) -> object:
    return call("unshare", _NEWNS) == 0


def network_namespace(facts: Facts) -> object:
    return call("unshare", _NEWNET) == 0


def user_namespace_by_clone(facts: Facts) -> object:
    child = call("clone", _NEWUSER | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "cloned"


def user_namespace_by_clone3(facts: Facts) -> object:
    arguments = (ctypes.c_uint64 * 8)(_NEWUSER, 0, 0, 0, 17, 0, 0, 0)
    child = call("clone3", arguments, ctypes.sizeof(arguments))
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "cloned"


def enter_a_namespace(facts: Facts) -> object:
    for name in ("net", "ipc", "uts"):
        call("setns", os.open(f"/proc/{facts['victim']}/ns/{name}", os.O_RDONLY), 0)
    return "entered"


def enter_its_own_namespace(facts: Facts) -> object:
    return call("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0) == 0


def mount_a_file_system(facts: Facts) -> object:
    call("mount", b"none", os.fsencode(_tmp()), b"tmpfs", 0, None)
    call("umount2", os.fsencode(_tmp()), 2)
    return "mounted"


def mount_the_new_way(facts: Facts) -> object:
    return call("fsopen", b"tmpfs", 0)


def clone_a_mount(facts: Facts) -> object:
    return call("open_tree", -100, b"/", 1)


def change_the_root(facts: Facts) -> object:
    return call("chroot", os.fsencode(_tmp())) == 0


def device_by_mknod(facts: Facts) -> object:
    node = Path(_tmp(), "memory")
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 1))
    node.unlink()
    return "made"


def devices_of_the_machine(facts: Facts) -> object:
    found = []
    for name in ("mem", "kmsg", "vda", "sda", "nvme0n1", "kvm", "fuse", "net/tun", "loop-control", "tty0", "ptmx"):
        try:
            os.close(os.open(f"/dev/{name}", os.O_RDWR | os.O_NONBLOCK))
        except OSError:
            continue
        found.append(name)
    return found


def type_into_a_terminal(facts: Facts) -> object:
    _, terminal = os.openpty()
    fcntl.ioctl(terminal, 0x5412, b"x")  # TIOCSTI
    return "typed"


def controlling_terminal(facts: Facts) -> object:
    return fcntl.ioctl(0, 0x5412, b"x")


def kernel_settings(facts: Facts) -> object:
    return os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)


def magic_keys(facts: Facts) -> object:
    return os.open("/proc/sysrq-trigger", os.O_WRONLY)


def more_user_namespaces(facts: Facts) -> object:
    return os.open("/proc/sys/user/max_user_namespaces", os.O_WRONLY)


def leave_the_cgroup(facts: Facts) -> object:
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"):
        try:
            return os.open(f"{folder}/cgroup.procs", os.O_WRONLY)
        except OSError:
            continue
    return None


def never_end_for_memory(facts: Facts) -> object:
    Path("/proc/self/oom_score_adj").write_text("-500")
    return "spared"


def core_dumps(facts: Facts) -> object:
    resource.setrlimit(resource.RLIMIT_CORE, (4096, 4096))
    return "allowed"


def more_processes(facts: Facts) -> object:
    resource.setrlimit(resource.RLIMIT_NPROC, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return "allowed"


def programs_in_the_kernel(facts: Facts) -> object:
    about = (ctypes.c_uint32 * 32)(2, 4, 8, 1)  # an array of one value
    return call("bpf", 0, about, 72)


def rings_of_calls(facts: Facts) -> object:
    return call("io_uring_setup", 4, (ctypes.c_uint8 * 120)())


def page_faults(facts: Facts) -> object:
    return call("userfaultfd", 1)


def performance_counters(facts: Facts) -> object:
    about = (ctypes.c_uint32 * 32)(1, 128)  # PERF_TYPE_SOFTWARE, the clock
    return call("perf_event_open", about, 0, -1, -1, 0)


def file_by_handle(facts: Facts) -> object:
    handle = ctypes.create_string_buffer(8 + 128)
    ctypes.cast(handle, ctypes.POINTER(ctypes.c_uint32))[0] = 128
    mount = ctypes.c_int()
    call("name_to_handle_at", -100, b"/", handle, ctypes.byref(mount), 0)
    return call("open_by_handle_at", os.open("/", os.O_RDONLY), handle, os.O_RDONLY)


def made_up_file_handle(facts: Facts) -> object:
    handle = ctypes.create_string_buffer(b"\x08\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0", 16)  # inode 2, the root of ext4
    return call("open_by_handle_at", os.open(str(facts["data_folder"]), os.O_RDONLY), handle, os.O_RDONLY)


def events_of_files(facts: Facts) -> object:
    return call("fanotify_init", 0, 0)


def kernel_log(facts: Facts) -> object:
    return call("syslog", 3, ctypes.create_string_buffer(100), 100) >= 0 and "asked"


def accounting(facts: Facts) -> object:
    return call("acct", None) == 0


def ports(facts: Facts) -> object:
    return call("iopl", 3) == 0


def name_of_the_machine(facts: Facts) -> object:
    name = os.uname().nodename.encode()
    return call("sethostname", name, len(name)) == 0


def weaker_randomness(facts: Facts) -> object:
    return call("personality", 0x004_0000) >= 0


def modules(facts: Facts) -> object:
    try:
        call("delete_module", b"no_such_module_of_a_probe", 0)
    except FileNotFoundError:
        return "asked for one that is not there"
    return None


def calls_of_another_architecture(facts: Facts) -> object:
    if os.uname().machine != "x86_64":
        return None
    # mov eax, 20 (getpid of i386); int 0x80; ret
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid()


def calls_of_x32(facts: Facts) -> object:
    libc.syscall(ctypes.c_long(0x4000_0000 | 39))
    return "lived"
