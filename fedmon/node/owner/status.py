"""How a node is, in one document: for its owner, running or not."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from fedmon import __version__
from fedmon.node.owner.desk import Desk
from fedmon.node.requests.policy import Policy

_SET_ASIDE = "*.sqlite.damaged-*Z"
"""Registers and recordings that were found damaged; they lie there until the owner has looked at them."""


class Lease(TypedDict):
    """Who watches this node live, and how often it gets a sample, in seconds."""

    researcher_id: str
    instance: str
    interval_s: float


class DuplicateId(TypedDict):
    """Another process that uses this node's id: its boot, and when its presence was last seen."""

    boot: int
    seen: str


class Live(TypedDict):
    """What only a running daemon knows; times are RFC 3339 in UTC.

    ``flapping`` says why connections keep getting lost; empty while they do not. ``recording`` is "on", "off", or why
    samples cannot be stored at present. ``sandbox`` is how plans are confined that run now, null as long as that is not
    known or where no level can be had; ``sandbox_problem`` says why none can run though the level would do. ``jobs`` is
    how many run.
    """

    pid: int
    started: str
    boot: int
    connected: bool
    since: str
    host: str
    last_error: str
    flapping: str
    duplicate: DuplicateId | None
    recording: str
    counters: Mapping[str, int]
    sandbox: str | None
    sandbox_reasons: Mapping[str, str]
    sandbox_problem: str
    jobs: int
    leases: list[Lease]


class Nothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that takes no values."""


def status(desk: Desk, _args: Nothing) -> dict[str, Any]:
    """Tell how the node is; ``live`` is null while no daemon runs."""
    settings = desk.settings
    policy = Policy(settings.policy, settings.id)
    plans = collections.Counter(plan.status.value for plan in desk.plans.all())
    return {
        "node_id": settings.id,
        "folder": str(desk.folder.path),
        "agent_version": __version__,
        "broker": settings.broker.url,
        "wire": settings.wire,
        "live": desk.live(),
        "obeys_nobody": policy.obeys_nobody,
        "policy": msgspec.to_builtins(settings.policy),
        "rules": list(policy.describe()),
        "metrics": msgspec.to_builtins(settings.metrics, enc_hook=str),  # its roots are paths
        "runs": {
            "enabled": settings.runs.enabled,
            "minimum": settings.runs.sandbox,
            "max_jobs": settings.runs.max_jobs,
        },
        "datasets": len(desk.datasets.all()),
        "plans": {name: plans.get(name, 0) for name in ("pending", "approved", "rejected")},
        "undelivered": desk.outbox.waiting(),
        "restored": _restored(desk),
        "set_aside": _set_aside(desk),
    }


def _set_aside(desk: Desk) -> list[str] | None:
    """List the damaged files that were set aside; None while the folder cannot be read."""
    try:
        return [path.name for path in sorted(desk.folder.path.glob(_SET_ASIDE))]
    except OSError:
        return None


def _restored(desk: Desk) -> dict[str, str] | None:
    """Tell when the register was restored last, and what was lost by that."""
    report, moment = desk.database.mark("report"), desk.database.restored
    if report is None or moment is None:
        return None
    return {"time": moment.isoformat(timespec="seconds"), "report": report}


STATUS_COMMANDS: Mapping[str, tuple[type[Any], Any]] = {"status": (Nothing, status)}
