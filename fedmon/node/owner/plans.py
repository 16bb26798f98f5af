"""The owner's commands about training plans."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError
from fedmon.common.wire.messages import PlanStatus
from fedmon.node.owner.desk import Desk
from fedmon.node.owner.plan_reference import find, names_one_id
from fedmon.node.registers.plan_records import PlanRecord, PlanType
from fedmon.node.registers.plan_source import read_plan_file
from fedmon.node.registers.plan_view import diff, visible, visible_text


class ListPlans(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which plans to list, and in which order."""

    status: PlanStatus | None = None
    type: PlanType | None = None
    name: str | None = None
    search: str | None = None
    sort: str = "created"
    descending: bool = False


class OnePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One plan, by id, digest, the beginning of one of them, or name."""

    plan: str
    by: str = ""


class Decide(OnePlan, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision about exact bytes.

    ``sha256`` is the digest that the owner has before him. ``by_id`` asks for the plan to be named by that, by its id
    or by its whole digest, so that no name that somebody else chose decides which bytes are meant.
    """

    status: Literal["approved", "rejected"]
    note: str = ""
    sha256: str | None = None
    by_id: bool = False


class Register(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan of the owner's own: the file at ``path``, which must still hold the bytes that the owner saw."""

    path: str
    sha256: str
    name: str
    description: str = ""
    by: str = ""


def list_plans(desk: Desk, args: ListPlans) -> dict[str, Any]:
    """List plans."""
    found = desk.plans.all(
        status=args.status,
        plan_type=args.type,
        name=args.name,
        search=args.search,
        sort=args.sort,
        descending=args.descending,
    )
    return {"plans": [shown(plan) for plan in found]}


def show_plan(desk: Desk, args: OnePlan) -> dict[str, Any]:
    """Show everything of a plan, and its source with nothing hidden."""
    plan = find(desk.plans.all(), args.plan)
    source = desk.plans.source(plan.plan_id)
    return {
        "plan": {**shown(plan), "requested_by": list(desk.plans.requesters(plan.plan_id))},
        "source": visible(source),
    }


def diff_plan(desk: Desk, args: OnePlan) -> dict[str, Any]:
    """Compare a plan with the plan of its name that was approved last."""
    plan = find(desk.plans.all(), args.plan)
    before = desk.plans.last_approved(plan.name, other_than=plan.sha256)
    if before is None:
        raise NotFoundError(
            f"no other plan named {visible_text(plan.name)!r} was approved here: read the whole of it with "
            f"'fedmon node plan show {plan.plan_id}'"
        )
    text = diff(
        desk.plans.source(before.plan_id),
        desk.plans.source(plan.plan_id),
        old_name=f"sha256 {before.sha256}",
        new_name=f"sha256 {plan.sha256}",
    )
    return {"plan": shown(plan), "against": shown(before), "diff": text, "same": not text}


def decide_plan(desk: Desk, args: Decide) -> dict[str, Any]:
    """Approve or reject exact bytes; the audit has the decision before the register does."""
    with desk.database.transaction():
        plan = find(desk.plans.all(), args.plan)
        if args.sha256 is not None and args.sha256 != plan.sha256:
            raise ConflictError(
                f"plan {plan.plan_id} has SHA-256 {plan.sha256} and not {args.sha256}: look at it again with "
                f"'fedmon node plan show {plan.plan_id}'"
            )
        if args.by_id and args.sha256 is None and not names_one_id(plan, args.plan):
            raise InvalidInputError(
                f"missing --sha256: {visible_text(args.plan)!r} is no plan's id; say which bytes you mean with "
                f"--sha256 {plan.sha256}, or name plan {plan.plan_id}"
            )
        return _decided(desk, plan, PlanStatus(args.status), note=args.note, by=args.by)


def reset_plan(desk: Desk, args: OnePlan) -> dict[str, Any]:
    """Make a plan pending again."""
    with desk.database.transaction():
        return _decided(desk, find(desk.plans.all(), args.plan), PlanStatus.PENDING, note="", by=args.by)


def register_plan(desk: Desk, args: Register) -> dict[str, Any]:
    """Take in a plan of the owner's own, approved by that."""
    source = read_plan_file(Path(args.path), desk.settings.max_plan_bytes)
    if hashlib.sha256(source).hexdigest() != args.sha256:
        raise ConflictError(f"{args.path} changed while it was being registered: look at it again")
    plan = desk.plans.register(source, name=args.name, description=args.description, by=args.by)
    desk.check_plan(plan.sha256)
    return {"plan": shown(plan)}


def delete_plan(desk: Desk, args: OnePlan) -> dict[str, Any]:
    """Forget a plan, its bytes and its approval."""
    plan = desk.plans.delete(find(desk.plans.all(), args.plan).plan_id, by=args.by)
    desk.plan_withdrawn(plan.sha256)
    return {"plan": shown(plan)}


def shown(plan: PlanRecord) -> dict[str, Any]:
    """Return what is known of a plan as a document, texts with nothing hidden."""
    document: dict[str, Any] = msgspec.to_builtins(plan)
    for key in ("name", "description", "note", "problem"):
        document[key] = visible_text(document[key])
    return {**document, "hint": plan.hint}


def _decided(desk: Desk, plan: PlanRecord, status: PlanStatus, *, note: str, by: str) -> dict[str, Any]:
    """Decide inside the caller's transaction, with the researchers' messages in the outbox; push once committed."""
    decision = desk.plans.decide(plan.plan_id, status, note=note, by=by, sha256=plan.sha256)
    for message in decision.messages(node_id=desk.settings.id, boot=desk.boot()):
        desk.outbox.add(message)
    desk.database.after_commit(lambda: desk.after_decision(decision))
    if status is not PlanStatus.APPROVED:
        desk.database.after_commit(lambda: _withdrawn(desk, plan))
    return {
        "plan": shown(decision.plan),
        "changed": (plan.status, plan.note) != (status, note),
        "tells": list(decision.researchers),
    }


def _withdrawn(desk: Desk, plan: PlanRecord) -> None:
    desk.plan_withdrawn(plan.sha256)


PLAN_COMMANDS: Mapping[str, tuple[type[Any], Any]] = {
    "plan-list": (ListPlans, list_plans),
    "plan-show": (OnePlan, show_plan),
    "plan-diff": (OnePlan, diff_plan),
    "plan-decide": (Decide, decide_plan),
    "plan-reset": (OnePlan, reset_plan),
    "plan-register": (Register, register_plan),
    "plan-delete": (OnePlan, delete_plan),
}
