"""What a plan tries and must not be able to do, at each level, as root and as an ordinary user."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fedmon.common.wire.runs import Level
from fedmon.node.runs.sandbox import bubblewrap, landlock
from tests.node.runs.sandboxes import NOBODY, Machine, machine
from tests.support.requirements import require

# What succeeds beside the sandbox only where the kernel was built with it, or root has every right there.
_MAY_BE_MISSING = {
    "controlling_terminal",  # no terminal in a test
    "crypto_sockets",
    "virtual_machine_sockets",
    "magic_keys",
    "modules",
    "ports",
    "more_processes",
    "more_user_namespaces",
    "never_end_for_memory",
    "calls_of_another_architecture",
    "tcp_over_ipv6",
    "performance_counters",
    "events_of_files",
    "accounting",
}
# What the level states that it lacks; the keeper looks after these.
_LACKS: dict[Level, set[str]] = {"bubblewrap": set(), "landlock": {"many_files"}, "limits": set()}
# Shared mappings count in no limit of a process, only in a cgroup, and an ordinary user may have none.
_NEEDS_A_CGROUP = {"shared_memory"}


@pytest.fixture(params=[0, NOBODY], ids=["root", "nobody"])
def target(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Return a machine of root or of an ordinary user; one who is not root has only his own."""
    require(os.geteuid() == 0 or request.param != 0, "only root starts sandboxes as root")
    with machine(request.param if os.geteuid() == 0 else os.geteuid()) as made:
        yield made


def test_every_probe_succeeds_where_nothing_confines_it() -> None:
    require(os.geteuid() == 0, "only root can do all that the probes try")
    with machine(0) as target:
        done, complaints = target.probed(None)
    assert set() == {name for name, found in done.items() if not found} - _MAY_BE_MISSING, complaints
    assert len(done) - len(_MAY_BE_MISSING) >= 100


def test_no_probe_succeeds_in_bubblewrap(target: Machine) -> None:
    require(bubblewrap.program(), "bubblewrap is not installed")
    done, complaints = target.probed("bubblewrap")
    lacking = _LACKS["bubblewrap"] | (_NEEDS_A_CGROUP if target.user else set())
    assert {name: found for name, found in done.items() if found and name not in lacking} == {}, complaints
    assert len(done) >= 100


def test_no_probe_succeeds_under_landlock_but_what_it_is_said_to_lack(target: Machine) -> None:
    require(landlock.abi() >= 6, "this kernel has no Landlock that covers signals")
    done, complaints = target.probed("landlock")
    lacking = _LACKS["landlock"] | (_NEEDS_A_CGROUP if target.user else set())
    assert {name: found for name, found in done.items() if found and name not in lacking} == {}, complaints
    assert len(done) >= 100
