"""What the owner of this node allows: who is obeyed, what is listed to whom, which metrics and logs leave.

`allow` and `deny` make new rules of old ones, as `fedmon node policy` does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from fedmon.common.errors import ConflictError, InvalidInputError
from fedmon.common.settings import PolicySettings

EVERYBODY = "*"
NO_LOGS = "NONE"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", NO_LOGS)
_MAX_REMEMBERED = 10_000


class Policy:
    """The owner's rules; every method is safe from any thread. What no rule allows is refused."""

    def __init__(self, settings: PolicySettings, node_id: str) -> None:
        self.node_id = node_id
        self.follow(settings)

    def follow(self, settings: PolicySettings) -> None:
        """Obey other rules from now on."""
        self.settings = settings
        self._obeyed = frozenset(settings.researchers)
        self._lowest = None if settings.log_level == "NONE" else logging.getLevelNamesMapping()[settings.log_level]
        # One value, so that no answer by the old patterns is remembered for the new ones.
        self._leaving: tuple[tuple[str, ...], dict[str, bool]] = (settings.metrics, {})

    @property
    def obeys_nobody(self) -> bool:
        """Tell whether no researcher at all is obeyed, as a fresh node does."""
        return not self._obeyed

    def refusal(self, researcher_id: str) -> str | None:
        """Return why this researcher is not obeyed and how the owner would change that, or None when it is."""
        if researcher_id in self._obeyed or EVERYBODY in self._obeyed:
            return None
        whom = "nobody" if self.obeys_nobody else "other researchers only"
        return (
            f"node {self.node_id} does not obey researcher {researcher_id} (it obeys {whom}); "
            f"its owner would allow it with: fedmon node policy allow {researcher_id} --dir NODE_FOLDER"
        )

    def may_see(self, researcher_id: str, dataset_id: str, name: str) -> bool:
        """Tell whether the dataset of this id and name is listed to this researcher.

        A rule for the dataset's id goes before one for its name; without either, every obeyed researcher sees it.
        """
        if self.refusal(researcher_id) is not None:
            return False
        rules = self.settings.datasets
        allowed = rules.get(dataset_id, rules.get(name))
        return allowed is None or researcher_id in allowed or EVERYBODY in allowed

    def metric_leaves(self, series: str) -> bool:
        """Tell whether a series such as ``host_load_ratio{cpu="0"}`` may leave, by the name of its metric."""
        name = series.partition("{")[0]
        patterns, known = self._leaving
        leaves = known.get(name)
        if leaves is None:
            leaves = any(fnmatchcase(name, pattern) for pattern in patterns)
            if len(known) < _MAX_REMEMBERED:
                known[name] = leaves
        return leaves

    def log_leaves(self, level: int | str) -> bool:
        """Tell whether a log record of this level may leave; a level that nobody knows does not."""
        if self._lowest is None:
            return False
        number = logging.getLevelNamesMapping().get(level, 0) if isinstance(level, str) else level
        return number >= self._lowest

    def describe(self) -> tuple[str, ...]:
        """Return the rules as lines for the owner to read."""
        settings = self.settings
        lines = [_obeyed_line(settings.researchers)]
        lines += [
            f"dataset {name} is listed to {_named(researchers)}"
            for name, researchers in sorted(settings.datasets.items())
        ]
        others = "other datasets are" if settings.datasets else "every dataset is"
        lines.append(f"{others} listed to every researcher that is obeyed")
        lines.append(f"metrics that leave: {', '.join(settings.metrics) or 'none'}")
        lines.append(
            "logs that leave: none" if self._lowest is None else f"logs that leave: {settings.log_level} and above"
        )
        lines.append(
            "what jobs print, log and fail with leaves"
            if settings.job_output
            else "what jobs print, log and fail with stays here; results and scalars of approved plans leave"
        )
        return tuple(lines)


def _obeyed_line(researchers: tuple[str, ...]) -> str:
    if not researchers:
        return "OBEYS NOBODY: every request is refused; allow one with: fedmon node policy allow RESEARCHER"
    if EVERYBODY in researchers:
        return "obeys every researcher that reaches the broker"
    return f"obeys {', '.join(researchers)}"


def _named(researchers: tuple[str, ...]) -> str:
    if EVERYBODY in researchers:
        return "every researcher that is obeyed"
    return ", ".join(researchers) or "nobody"


class PolicyWish(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner wants to allow or deny; an empty list is no wish about it."""

    researchers: Sequence[str] = ()
    datasets: Sequence[str] = ()
    metrics: Sequence[str] = ()
    log_level: str | None = None
    job_output: bool = False


def allow(policy: PolicySettings, wish: PolicyWish) -> tuple[PolicySettings, list[str]]:
    """Add to what is allowed; returns sentences for the owner, too, about effects that the words alone do not tell."""
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
    return changed, notes


def deny(policy: PolicySettings, wish: PolicyWish) -> tuple[PolicySettings, list[str]]:
    """Take away from what is allowed; returns sentences for the owner, too.

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
    return changed, notes


def with_policy(text: str, policy: PolicySettings) -> str:
    """Return the text of a settings file with these rules; nothing else changes, comments included."""
    import tomlkit  # only what changes rules needs it

    document = tomlkit.parse(text)
    section: Any = document.setdefault("policy", tomlkit.table())
    for name, default in msgspec.to_builtins(PolicySettings()).items():
        value = msgspec.to_builtins(getattr(policy, name))
        if name in section or value != default:
            _put(section, name, value)
    return tomlkit.dumps(document)


def _put(section: Any, name: str, value: Any) -> None:
    """Set a key; of lists and tables take out and add single names, so that a comment beside one that stays is kept."""
    import tomlkit

    present = section.get(name)
    if isinstance(value, dict):
        if present is None:
            is_inline = isinstance(section, tomlkit.items.InlineTable)
            section[name] = tomlkit.inline_table() if is_inline else tomlkit.table()
        for key in [key for key in section[name] if key not in value]:
            del section[name][key]
        for key, names in value.items():
            _put(section[name], key, names)
    elif isinstance(present, list):
        for known in [known for known in present if known not in value]:
            present.remove(known)
        for wanted in [wanted for wanted in value if wanted not in present]:
            present.append(wanted)
    elif present != value:
        section[name] = value


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
