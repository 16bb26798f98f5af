"""What the owner of this node allows: who is obeyed, what is listed to whom, which metrics and logs leave."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import Protocol

from fedmon.common.settings import PolicySettings

EVERYBODY = "*"
_MAX_REMEMBERED = 10_000


class Listed(Protocol):
    """What the policy must know of a dataset."""

    @property
    def dataset_id(self) -> str:
        """Its id."""

    @property
    def name(self) -> str:
        """Its name."""


class Policy:
    """The owner's rules, fixed for the life of this value; every method is safe from any thread.

    What no rule allows is refused. Changing a rule means a new Policy.
    """

    def __init__(self, settings: PolicySettings, node_id: str) -> None:
        self.settings, self.node_id = settings, node_id
        self._obeyed = frozenset(settings.researchers)
        self._lowest = None if settings.log_level == "NONE" else logging.getLevelNamesMapping()[settings.log_level]
        self._leaving: dict[str, bool] = {}

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

    def may_see(self, researcher_id: str, dataset: Listed) -> bool:
        """Tell whether a dataset is listed to this researcher.

        A rule for the dataset's id goes before one for its name; without either, every obeyed researcher sees it.
        """
        if self.refusal(researcher_id) is not None:
            return False
        rules = self.settings.datasets
        allowed = rules.get(dataset.dataset_id, rules.get(dataset.name))
        return allowed is None or researcher_id in allowed or EVERYBODY in allowed

    def metric_leaves(self, series: str) -> bool:
        """Tell whether a series such as ``host_load_ratio{cpu="0"}`` may leave, by the name of its metric."""
        name = series.partition("{")[0]
        leaves = self._leaving.get(name)
        if leaves is None:
            leaves = any(fnmatchcase(name, pattern) for pattern in self.settings.metrics)
            if len(self._leaving) < _MAX_REMEMBERED:
                self._leaving[name] = leaves
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
