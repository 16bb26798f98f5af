"""Probes that try to read or change files that a plan was not given."""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
import sys
from pathlib import Path

Facts = dict[str, object]


def _path(facts: Facts, name: str) -> Path:
    return Path(str(facts[name]))


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(100).decode(errors="replace") or "opened"


def node_key(facts: Facts) -> object:
    return _read(_path(facts, "secret"))


def node_folder(facts: Facts) -> object:
    return os.listdir(_path(facts, "node"))


def job_events(facts: Facts) -> object:
    return _read(_path(facts, "job") / "events.jsonl")


def other_dataset(facts: Facts) -> object:
    return _read(_path(facts, "other"))


def sibling_of_the_dataset(facts: Facts) -> object:
    inside = _path(facts, "data_folder").parent
    return [each.read_text() for each in inside.iterdir() if each.name == "other.csv"]


def password_file(facts: Facts) -> object:
    return _read(Path("/etc/passwd"))


def shadow_file(facts: Facts) -> object:
    return _read(Path("/etc/shadow"))


def secrets_of_the_machine(facts: Facts) -> object:
    found = []
    for name in ("acpi", "interrupts", "keys", "sched_debug", "scsi", "timer_list"):
        try:
            path = Path("/proc", name)
            found.append(os.listdir(path) if path.is_dir() else _read(path))
        except OSError:
            continue
    return [each for each in found if each]


def files_beside_its_own(facts: Facts) -> object:
    made = []
    for folder in ("/", "/dev", "/proc/acpi", "/proc/scsi", "/runtime"):
        path = Path(folder, "fedmon-probe")
        try:
            path.write_text("probe")
        except OSError:
            continue
        path.unlink()
        made.append(folder)
    return made


def users(facts: Facts) -> object:
    return pwd.getpwall()


def home_of_root(facts: Facts) -> object:
    return [each for each in os.listdir("/root") if each not in (".pyenv", ".local", ".cache")]


def system_settings(facts: Facts) -> object:
    return _read(Path("/etc/hostname"))


def logs(facts: Facts) -> object:
    return os.listdir("/var/log")


def kernel_tree(facts: Facts) -> object:
    return os.listdir("/sys/kernel")


def link_to_the_key(facts: Facts) -> object:
    link = Path(os.environ.get("TMPDIR", "/tmp"), "link")
    link.symlink_to(_path(facts, "secret"))
    return _read(link)


def link_in_the_dataset(facts: Facts) -> object:
    return _read(_path(facts, "data_folder") / "link")


def dots_out_of_the_dataset(facts: Facts) -> object:
    up = "../" * 12
    return _read(_path(facts, "data_folder") / (up + str(facts["secret"]).lstrip("/")))


def hard_link_to_the_key(facts: Facts) -> object:
    link = Path(os.environ.get("TMPDIR", "/tmp"), "hard")
    link.hardlink_to(_path(facts, "secret"))
    return _read(link)


def hard_link_to_the_dataset(facts: Facts) -> object:
    link = Path(os.environ.get("TMPDIR", "/tmp"), "hard-data")
    link.hardlink_to(_path(facts, "data"))
    with link.open("r+b"):
        return "writable"


def write_the_dataset(facts: Facts) -> object:
    with _path(facts, "data").open("r+b"):
        return "writable"


def append_to_the_dataset(facts: Facts) -> object:
    with _path(facts, "data").open("ab"):
        return "writable"


def truncate_the_dataset(facts: Facts) -> object:
    os.truncate(_path(facts, "data"), _path(facts, "data").stat().st_size)
    return "truncated"


def modes_of_the_dataset(facts: Facts) -> object:
    _path(facts, "data").chmod(0o644)
    return "changed"


def modes_by_descriptor(facts: Facts) -> object:
    with _path(facts, "data").open("rb") as file:
        os.fchmod(file.fileno(), 0o644)
    return "changed"


def times_of_the_dataset(facts: Facts) -> object:
    os.utime(_path(facts, "data"))
    return "changed"


def attributes_of_the_dataset(facts: Facts) -> object:
    os.setxattr(_path(facts, "data"), "user.mark", b"x")
    return "changed"


def flags_of_the_dataset(facts: Facts) -> object:
    with _path(facts, "data").open("rb") as file:
        flags = fcntl.ioctl(file, 0x8008_6601, bytes(8))  # FS_IOC_GETFLAGS
        fcntl.ioctl(file, 0x4008_6602, flags)  # FS_IOC_SETFLAGS
    return "changed"


def modes_of_a_device(facts: Facts) -> object:
    Path("/dev/null").chmod(0o666)
    return "changed"


def modes_of_standard_input(facts: Facts) -> object:
    if stat.S_ISCHR(os.fstat(0).st_mode):
        os.fchmod(0, 0o666)
        return "changed"
    return None


def remove_from_the_dataset(facts: Facts) -> object:
    (_path(facts, "data_folder") / "link").rename(_path(facts, "data_folder") / "moved")
    (_path(facts, "data_folder") / "moved").rename(_path(facts, "data_folder") / "link")
    return "renamed"


def add_to_the_dataset(facts: Facts) -> object:
    new = _path(facts, "data_folder") / "new"
    new.touch()
    new.unlink()
    return "created"


def modes_of_the_key(facts: Facts) -> object:
    _path(facts, "secret").chmod(0o600)
    return "changed"


def times_of_the_key(facts: Facts) -> object:
    os.utime(_path(facts, "secret"))
    return "changed"


def write_to_the_node(facts: Facts) -> object:
    new = _path(facts, "node") / "new"
    new.mkdir()
    new.rmdir()
    return "created"


def write_the_interpreter(facts: Facts) -> object:
    with Path(os.__file__).open("ab"):
        return "writable"


def write_the_program(facts: Facts) -> object:
    marker = Path(os.path.realpath(sys.executable)).parent / "marker-of-a-probe"
    marker.touch()
    marker.unlink()
    return "created"


def write_the_runtime(facts: Facts) -> object:
    with Path(__file__).open("ab"):
        return "writable"


def write_elsewhere(facts: Facts) -> object:
    found = []
    for folder in ("/", "/dev", "/usr", "/usr/lib", "/etc", "/data", "/proc", "/var/tmp", "/run", "/lib64", "/opt"):
        try:
            marker = Path(folder, "marker-of-a-probe")
            marker.touch()
            marker.unlink()
        except OSError:
            continue
        found.append(folder)
    return found


def shared_memory_of_the_machine(facts: Facts) -> object:
    marker = Path("/dev/shm/marker-of-a-probe")
    if marker.parent.stat().st_dev != facts["shm_device"]:
        return None
    marker.touch()
    marker.unlink()
    return "created"


def root_of_a_process(facts: Facts) -> object:
    for each in ("self", "1", str(os.getppid()), str(facts["victim"])):
        for way in ("root", "cwd", "task/" + each + "/root"):
            try:
                return _read(Path(f"/proc/{each}/{way}/{str(facts['secret']).lstrip('/')}"))
            except OSError:
                continue
    return None


def folder_of_a_descriptor(facts: Facts) -> object:
    for number in range(64):
        for up in ("", "../" * 12):
            try:
                return _read(Path(f"/proc/self/fd/{number}/{up}{str(facts['secret']).lstrip('/')}"))
            except OSError:
                continue
    try:
        here = os.open("/", os.O_RDONLY)
        return os.open(str(facts["secret"]).lstrip("/"), os.O_RDONLY, dir_fd=here)
    except OSError:
        return None


def changes_in_the_node(facts: Facts) -> object:
    from tests.node.runs.probes.calls import call, libc

    watch = call("inotify_init1", 0)
    return libc.inotify_add_watch(watch, os.fsencode(_path(facts, "node")), 0xFFF) > 0
