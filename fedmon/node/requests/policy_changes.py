"""What `policy allow` and `policy deny` make of the owner's rules, and what the owner should know about it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fedmon.common.errors import ConflictError, InvalidInputError
from fedmon.common.settings import PolicySettings
from fedmon.node.requests.policy import EVERYBODY

NO_LOGS = "NONE"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", NO_LOGS)


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner wants to allow or deny; an empty list is no wish about it."""

    researchers: Sequence[str] = ()
    datasets: Sequence[str] = ()
    metrics: Sequence[str] = ()
    log_level: str | None = None
    job_output: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The new rules, and sentences for the owner about effects that the words alone do not tell."""

    policy: PolicySettings
    notes: tuple[str, ...] = ()


def allow(policy: PolicySettings, wish: Wish) -> Change:
    """Add to what is allowed."""
    notes: list[str] = []
    researchers = policy.researchers
    if EVERYBODY in researchers and wish.researchers:
        notes.append("everybody is obeyed already ('*'); to obey only some, first: policy deny '*'")
    else:
        researchers = _with(researchers, wish.researchers)
    datasets = dict(policy.datasets)
    for dataset in wish.datasets:
        if dataset not in datasets:
            notes.append(
                f"dataset {dataset} is from now on listed to {', '.join(wish.researchers)} only; "
                "until now every researcher that is obeyed could see it"
            )
        datasets[dataset] = _with(datasets.get(dataset, ()), wish.researchers)
    if wish.researchers and not wish.datasets:
        notes += [
            f"dataset {dataset} stays hidden from {researcher}: a rule names who may see it"
            for researcher in wish.researchers
            for dataset, allowed in sorted(datasets.items())
            if researcher not in allowed and EVERYBODY not in allowed
        ]
    if wish.job_output and policy.log_level != "DEBUG":
        lowest = "no record leaves" if policy.log_level == NO_LOGS else f"records below {policy.log_level} stay here"
        notes.append(f"of what plans log, {lowest}: policy allow --log-level INFO lets more leave")
    if wish.metrics and "*" in policy.metrics:
        notes.append("every metric leaves already; to let only some leave, first: policy deny --metric '*'")
    changed = msgspec.structs.replace(
        policy,
        researchers=researchers,
        datasets=datasets,
        metrics=_with(policy.metrics, wish.metrics),
        log_level=wish.log_level or policy.log_level,
        job_output=policy.job_output or wish.job_output,
    )
    return Change(policy=changed, notes=tuple(notes))


def deny(policy: PolicySettings, wish: Wish) -> Change:
    """Take away from what is allowed.

    Raises ConflictError when a rule for all stands in the way, because taking one from all cannot be written down.
    """
    if wish.log_level == NO_LOGS:
        raise InvalidInputError("NONE is no level of a record: deny one of " + ", ".join(LEVELS[:-1]))
    notes: list[str] = []
    researchers, datasets = policy.researchers, dict(policy.datasets)
    if wish.datasets:
        for dataset in wish.datasets:
            datasets[dataset] = _without_one_of(datasets.get(dataset, policy.researchers), wish.researchers, dataset)
            if not datasets[dataset]:
                notes.append(f"dataset {dataset} is listed to nobody now")
    elif wish.researchers:
        if EVERYBODY in researchers and EVERYBODY not in wish.researchers:
            raise ConflictError(
                "everybody is obeyed ('*'), so nobody can be left out: first \"policy deny '*'\", "
                "then allow those whom this node shall obey"
            )
        researchers = _without(researchers, wish.researchers)
        datasets = {dataset: _without(allowed, wish.researchers) for dataset, allowed in datasets.items()}
    if wish.metrics and "*" in policy.metrics and "*" not in wish.metrics:
        raise ConflictError(
            "every metric leaves ('*'), so none can be left out: first \"policy deny --metric '*'\", "
            "then allow those that shall leave"
        )
    notes += [f"no rule lets metrics {glob!r} leave" for glob in wish.metrics if glob not in policy.metrics]
    notes += [
        f"{researcher} was not obeyed before"
        for researcher in wish.researchers
        if not wish.datasets and researcher not in policy.researchers
    ]
    changed = msgspec.structs.replace(
        policy,
        researchers=researchers,
        datasets=datasets,
        metrics=_without(policy.metrics, wish.metrics),
        log_level=_above(policy.log_level, wish.log_level),
        job_output=policy.job_output and not wish.job_output,
    )
    return Change(policy=changed, notes=tuple(notes))


def _with(present: Sequence[str], added: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*present, *added)))


def _without(present: Sequence[str], removed: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in present if name not in removed)


def _without_one_of(present: Sequence[str], removed: Sequence[str], dataset: str) -> tuple[str, ...]:
    if EVERYBODY in present and EVERYBODY not in removed:
        raise ConflictError(
            f"dataset {dataset} is listed to everybody who is obeyed, and that is everybody ('*'): name those who may "
            f"see it with 'policy allow RESEARCHER --dataset {dataset}'"
        )
    return _without(present, removed)


def _above(present: str, denied: str | None) -> str:
    """Return the lowest level that leaves when records of ``denied`` and below stay here."""
    if denied is None:
        return present
    return LEVELS[max(LEVELS.index(present), LEVELS.index(denied) + 1)]
