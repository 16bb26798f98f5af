"""A job in namespaces of its own, made by bubblewrap: what is not given to it does not exist there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedmon.node.runs.order import JobOrder
from fedmon.node.runs.sandbox.staging import Source, renamed

RUNTIME, DATA, TMP = "/runtime", "/data", "/tmp"  # noqa: S108 - the sandbox's own

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def program() -> str | None:
    """Return where bubblewrap is installed; null where it is not."""
    return shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")


def data_path(order: JobOrder) -> str | None:
    """Return where the dataset lies inside."""
    if order.dataset is None:
        return None
    return f"{DATA}/{Path(order.dataset.path).name}"


def sources(order: JobOrder) -> list[Source]:
    """Return what is to be seen inside, as it lies outside; links are made anew and not among them."""
    needed = [Source(path=each, public=True) for each in order.interpreter.needs if not Path(each).is_symlink()]
    needed.append(Source(path=order.runtime, public=False))
    if order.dataset is not None:
        needed.append(Source(path=order.dataset.path, public=False))
    return needed


def options(order: JobOrder, lies_at: Mapping[str, str], *, namespace: int, seccomp: int) -> list[str]:
    """Return bubblewrap's options; ``lies_at`` says where a source lies now, the numbers are descriptors."""
    at = dict(lies_at)
    words = [
        *("--userns", str(namespace)),
        # bubblewrap would leave that descriptor to the plan. One to block on is read (which fails at once) and closed.
        *("--block-fd", str(namespace)),
        *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--add-seccomp-fd", str(seccomp)),
        # One file system holds all that a job writes, so one size bounds it; semaphores and shared memory lie there
        # too. It comes first: an interpreter may itself lie below /tmp.
        *("--size", str(order.limits.tmp_bytes), "--tmpfs", TMP),
    ]
    for need in order.interpreter.needs:
        if Path(need).is_symlink():
            words += ["--symlink", str(Path(need).readlink()), need]
        else:
            words += ["--ro-bind", renamed(at, need), need]
    words += ["--ro-bind", renamed(at, order.runtime), RUNTIME]
    inside = data_path(order)
    if order.dataset is not None and inside is not None:
        words += ["--ro-bind", renamed(at, order.dataset.path), inside]
    words += ["--proc", "/proc", *_devices(order.devices)]
    words += ["--symlink", TMP, "/dev/shm"]  # noqa: S108
    # Settings of the machine lie below /proc, and whoever is root outside may write them without any capability.
    return [*words, "--remount-ro", "/proc", "--remount-ro", "/", "--chdir", TMP]


def _devices(given: Iterable[str]) -> list[str]:
    words = ["--dir", "/dev"]
    for device in (*DEVICES, *given):
        words += ["--dev-bind-try", device, device]
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        words += ["--symlink", f"/proc/self/fd{target}", f"/dev/{name}"]
    return words
