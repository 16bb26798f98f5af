"""What the doctor found: one line a check, with what to do about each failure."""

from __future__ import annotations

import enum

import msgspec


class Verdict(enum.Enum):
    """How a check ended; a skipped one could not be made, or does not apply."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what was found, and what to do when it is not well."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Check:
    """Return a check that is well."""
    return Check(name=name, verdict=Verdict.OK, found=found)


def warning(name: str, found: str, advice: str) -> Check:
    """Return a check that somebody should look at."""
    return Check(name=name, verdict=Verdict.WARNING, found=found, advice=advice)


def failed(name: str, found: str, advice: str) -> Check:
    """Return a check that keeps something from working."""
    return Check(name=name, verdict=Verdict.FAILED, found=found, advice=advice)


def skipped(name: str, found: str) -> Check:
    """Return a check that was not made, and why."""
    return Check(name=name, verdict=Verdict.SKIPPED, found=found)
