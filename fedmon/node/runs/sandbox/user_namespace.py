"""User namespaces made beforehand, so that limits hold per job and the outside user is one that owns nothing.

Left to itself bubblewrap makes its user namespace as late as it runs, and RLIMIT_NPROC, which must be set before, then
counts all processes of the node's user on this machine. In a namespace that is there already it counts those of the
job alone. And real root is exempt from that limit: a node that runs as root starts a job as a user of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from fedmon.node.runs.sandbox.kernel import CLONE_NEWUSER, PR_SET_DUMPABLE, prctl, unshare

INSIDE = 65534
"""Who a plan is inside: nobody, and his group."""

# systemd's docs/UIDS-GIDS.md leaves 1879048192 to 2147483647 to nobody at all.
_FIRST_SPARE = 1_879_048_192


def spare_user() -> int:
    """Return a user id that owns nothing on this machine; another one for each living process that asks."""
    chosen = _FIRST_SPARE + os.getpid()
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = (int(word) for word in line.split())
        if first <= chosen < first + count:
            return chosen
    return INSIDE  # inside a container that has few ids


def own_namespace(user: int, group: int) -> int:
    """Return a descriptor of a new user namespace of ``user``, in which he is INSIDE and nobody else exists.

    No further user namespace can be made in it. Needs root for a user other than this process's own.
    Raises OSError where this kernel or its administrator allows no user namespaces.
    """

    def become() -> None:
        if user != os.geteuid():
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
            prctl(PR_SET_DUMPABLE, 1)  # a change of user clears it, and then /proc/self belongs to root

    def settle() -> None:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{INSIDE} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{INSIDE} {group} 1")
        with contextlib.suppress(OSError):  # /proc/sys may be read-only in a container; seccomp denies it too
            Path("/proc/sys/user/max_user_namespaces").write_text("0")

    return _made(become, settle)


def shift(user: int, group: int, *, to_user: int, to_group: int) -> int:
    """Return a descriptor of a user namespace for mount_setattr: files of one user become those of another.

    Needs root.
    """

    def nothing() -> None:
        return None

    return _made(nothing, nothing, uid_map=f"{user} {to_user} 1", gid_map=f"{group} {to_group} 1")


def _made(become: Callable[[], None], settle: Callable[[], None], *, uid_map: str = "", gid_map: str = "") -> int:
    """Have a child make the namespace, and keep it by its descriptor when the child is gone."""
    ready, say_ready = os.pipe()
    done, say_done = os.pipe()
    child = os.fork()
    if child == 0:
        number = 0
        try:
            os.close(say_done)
            become()
            unshare(CLONE_NEWUSER)
            settle()
        except OSError as error:
            number = error.errno or 1
        finally:
            os.write(say_ready, bytes([number]))
            os.read(done, 1)
            os._exit(0)
    os.close(say_ready)
    os.close(done)
    try:
        answer = os.read(ready, 1)
        if answer != b"\0":
            number = answer[0] if answer else 1
            raise OSError(number, f"no user namespace: {os.strerror(number)}")
        if uid_map:
            Path(f"/proc/{child}/uid_map").write_text(uid_map)
            Path(f"/proc/{child}/gid_map").write_text(gid_map)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(say_done)
        os.waitpid(child, 0)
