"""What one finding says."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class Severity(enum.Enum):
    """How much a finding matters, the worst first; unknown is what nobody could measure."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    GOOD = "good"
    UNKNOWN = "unknown"

    @property
    def rank(self) -> int:
        """The place among all, 0 for the worst."""
        return list(Severity).index(self)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened, in words.

    ``name`` is the same in every report. ``text`` is a sentence or two with figures and units, ``how`` says how they
    were computed, ``advice`` what to do, empty where there is nothing to do. ``figures`` are the same numbers for
    programs, in base units; None is unknown. ``nodes`` are those that it is about, by name.
    """

    name: str
    severity: Severity
    title: str
    text: str
    how: str = ""
    advice: str = ""
    figures: Mapping[str, float | None] = {}
    nodes: tuple[str, ...] = ()


def unknown(name: str, title: str, reason: str) -> Finding:
    """Say that something is not known, and why."""
    return Finding(name=name, severity=Severity.UNKNOWN, title=title, text=f"Not measured: {reason}.")
