"""The owner's rules: researchers that are obeyed, datasets listed to them, metrics and logs that leave.

`allow` and `deny` make new rules of old ones, as `fedmon node policy` does.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from fedmon.common.errors import ConflictError, InvalidInputError
from fedmon.common.settings.values import EVERYBODY, LogLevel, PolicySettings

if TYPE_CHECKING:
    from fedmon.node.registers.datasets import DatasetRecord

NO_LOGS = "NONE"
LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)


class Policy:
    """The owner's rules; every method is safe from any thread. Requests that no rule allows are refused."""

    def __init__(self, settings: PolicySettings, node_id: str) -> None:
        self.node_id = node_id
        self.follow(settings)

    def follow(self, settings: PolicySettings) -> None:
        """Obey other rules from now on."""
        self.settings = settings
        self.log_level = {**logging.getLevelNamesMapping(), NO_LOGS: logging.CRITICAL + 1}[settings.log_level]
        """The lowest level that leaves; above all levels if none does."""
        self._metrics = re.compile("|".join(map(translate, settings.metrics)))

    @property
    def obeys_nobody(self) -> bool:
        """Tell whether no researcher at all is obeyed, as a fresh node does."""
        return not self.settings.researchers

    def refusal(self, researcher_id: str) -> str | None:
        """Return why this researcher is not obeyed and how the owner would change that, or None when it is."""
        if researcher_id in self.settings.researchers or EVERYBODY in self.settings.researchers:
            return None
        whom = "no researcher" if self.obeys_nobody else "other researchers only"
        return (
            f"node {self.node_id} does not obey researcher {researcher_id} (it obeys {whom}); "
            f"its owner would allow it with: fedmon node policy allow {researcher_id}"
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

    def seen(self, researcher_id: str, datasets: Iterable[DatasetRecord]) -> dict[str, DatasetRecord]:
        """Return the datasets that are listed to this researcher, by their ids."""
        return {each.dataset_id: each for each in datasets if self.may_see(researcher_id, each.dataset_id, each.name)}

    def metric_leaves(self, series: str) -> bool:
        """Tell whether a series such as ``host_load_ratio{cpu="0"}`` may leave, by the name of its metric."""
        return self._metrics.fullmatch(series.partition("{")[0]) is not None

    def describe(self) -> tuple[str, ...]:
        """Return the rules as lines for the owner to read."""
        settings = self.settings
        logs = "none" if settings.log_level == NO_LOGS else f"{settings.log_level} and above"
        obeyed = (
            "every researcher on this broker" if EVERYBODY in settings.researchers else ", ".join(settings.researchers)
        )
        others = "other datasets are" if settings.datasets else "every dataset is"
        return (
            "OBEYS NO RESEARCHER: every request is refused; allow one with: fedmon node policy allow RESEARCHER"
            if self.obeys_nobody
            else f"obeys {obeyed}",
            *(f"dataset {name} is listed to {named(whom)}" for name, whom in sorted(settings.datasets.items())),
            f"{others} listed to every researcher that is obeyed",
            f"metrics that leave: {', '.join(settings.metrics) or 'none'}",
            f"logs that leave: {logs}",
            f"output and errors of jobs leave; of their log records: {logs}"
            if settings.job_output
            else "output, log records and errors of jobs stay here; results and scalars leave as [release] says",
        )


def named(researchers: Sequence[str]) -> str:
    """Return the researchers of a rule in words."""
    if EVERYBODY in researchers:
        return "every researcher that is obeyed"
    return ", ".join(researchers) or "no researcher"


class PolicyWish(msgspec.Struct, frozen=True, kw_only=True):
    """The owner's request to allow or deny; an empty list changes nothing."""

    researchers: Sequence[str] = ()
    datasets: Sequence[str] = ()
    metrics: Sequence[str] = ()
    log_level: LogLevel | None = None
    job_output: bool = False


def allow(policy: PolicySettings, wish: PolicyWish) -> PolicySettings:
    """Add to the rules. Raises InvalidInputError for names that are empty or not printable."""
    for name in (*wish.datasets, *wish.metrics):
        if not name.strip() or not name.isprintable():
            raise InvalidInputError(f"{name!r} names no dataset or metric: give a name in printable characters")
    added = {dataset: _with(policy.datasets.get(dataset, ()), wish.researchers) for dataset in wish.datasets}
    is_for_all = EVERYBODY in policy.researchers
    return msgspec.structs.replace(
        policy,
        researchers=policy.researchers if is_for_all else _with(policy.researchers, wish.researchers),
        datasets={**policy.datasets, **added},
        metrics=_with(policy.metrics, wish.metrics),
        log_level=wish.log_level or policy.log_level,
        job_output=policy.job_output or wish.job_output,
    )


def deny(policy: PolicySettings, wish: PolicyWish) -> PolicySettings:
    """Remove from the rules.

    Raises ConflictError if a rule for all exists, because all but one cannot be written down.
    """
    if wish.log_level == NO_LOGS:
        raise InvalidInputError("NONE is not a level of records: deny one of " + ", ".join(LEVELS[:-1]))
    researchers, datasets = policy.researchers, dict(policy.datasets)
    if wish.datasets:
        for dataset in wish.datasets:
            listed_to = datasets.get(dataset, researchers)
            datasets[dataset] = _without(listed_to, wish.researchers, f"dataset {dataset} is listed to all")
    elif wish.researchers:
        researchers = _without(researchers, wish.researchers, "every researcher is obeyed")
        datasets = {
            dataset: tuple(name for name in allowed if name not in wish.researchers)
            for dataset, allowed in datasets.items()
        }
    return msgspec.structs.replace(
        policy,
        researchers=researchers,
        datasets=datasets,
        metrics=_without(policy.metrics, wish.metrics, "every metric leaves"),
        log_level=_above(policy.log_level, wish.log_level),
        job_output=policy.job_output and not wish.job_output,
    )


def with_policy(text: str, policy: PolicySettings) -> str:
    """Return the text of a settings file with these rules; other keys and their comments stay as they are."""
    import tomlkit  # only what changes rules needs it

    document = tomlkit.parse(text)
    section: Any = document.setdefault("policy", tomlkit.table())
    defaults, rules = (msgspec.json.decode(msgspec.json.encode(each)) for each in (PolicySettings(), policy))
    for name, default in defaults.items():
        value = rules[name]
        if name in section or value != default:
            _put(section, name, value)
    return tomlkit.dumps(document)


def _put(section: Any, name: str, value: Any) -> None:
    """Set a key to another value; of a table set single keys, so that comments between them stay."""
    present = section.get(name)
    if isinstance(present, dict):
        for key in [key for key in present if key not in value]:
            del present[key]
        for key, names in value.items():
            _put(present, key, names)
    elif present != value:
        section[name] = value


def _with(present: Sequence[str], added: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*present, *added)))


def _without(present: Sequence[str], removed: Sequence[str], all_are: str) -> tuple[str, ...]:
    """Remove names. Raises ConflictError if a rule for all exists, and stays."""
    if removed and EVERYBODY in present and EVERYBODY not in removed:
        raise ConflictError(f"{all_are} ('*'), so none can be left out: first deny '*', then allow the others by name")
    return tuple(name for name in present if name not in removed)


def _above(present: str, denied: str | None) -> str:
    """Return the lowest level that leaves when records of ``denied`` and below stay here."""
    if denied is None:
        return present
    return LEVELS[max(LEVELS.index(present), LEVELS.index(denied) + 1)]
