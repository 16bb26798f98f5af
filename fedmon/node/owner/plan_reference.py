"""Which training plan the owner means by an id, a digest, the beginning of one of them, or a name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedmon.common.errors import ConflictError, NotFoundError
from fedmon.node.registers.plan_records import PlanRecord
from fedmon.node.registers.plan_view import visible_text

ID_PREFIX = "training_plan_"
MIN_ID_DIGITS = 4
MIN_DIGEST_DIGITS = 8

_HEX = re.compile(r"[0-9a-f]+")
_UUID_START = re.compile(r"[0-9a-f-]+")
_MAX_CANDIDATES = 8


def find(plans: Sequence[PlanRecord], reference: str) -> PlanRecord:
    """Return the one plan that ``reference`` stands for.

    A whole id or digest decides alone. Otherwise every plan counts whose name it is, or whose id (after
    ``training_plan_``, 4 characters or more) or digest (8 or more) begins with it: names come from researchers, so a
    name never goes before another plan's digest. Raises NotFoundError, or ConflictError listing the candidates.
    """
    for plan in plans:
        if reference in (plan.plan_id, plan.sha256):
            return plan
    found = [plan for plan in plans if plan.name == reference or _begins(plan, reference)]
    if not found:
        raise NotFoundError(
            f"no training plan {visible_text(reference)!r} here; 'fedmon node plan list' shows those that there are"
        )
    if len(found) > 1:
        raise ConflictError(
            f"{visible_text(reference)!r} stands for {len(found)} training plans; name one by its id: {_listed(found)}"
        )
    return found[0]


def names_one_id(plan: PlanRecord, reference: str) -> bool:
    """Tell whether a reference that found ``plan`` names it by its id or whole digest, which nobody else can choose."""
    return reference == plan.sha256 or _begins_id(plan, reference)


def _begins(plan: PlanRecord, reference: str) -> bool:
    is_digest = len(reference) >= MIN_DIGEST_DIGITS and _HEX.fullmatch(reference) is not None
    return _begins_id(plan, reference) or (is_digest and plan.sha256.startswith(reference))


def _begins_id(plan: PlanRecord, reference: str) -> bool:
    digits = reference.removeprefix(ID_PREFIX)
    is_start = len(digits) >= MIN_ID_DIGITS and _UUID_START.fullmatch(digits) is not None
    return is_start and plan.plan_id.startswith(ID_PREFIX + digits)


def _listed(found: Sequence[PlanRecord]) -> str:
    listed = [f"{plan.plan_id} ({visible_text(plan.name)}, {plan.status.value})" for plan in found[:_MAX_CANDIDATES]]
    more = [f"and {len(found) - _MAX_CANDIDATES} more"] if len(found) > _MAX_CANDIDATES else []
    return ", ".join(listed + more)
