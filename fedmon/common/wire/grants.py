"""Grants: the terms of an owner's approval, as they are decided, kept, sent and checked."""

from __future__ import annotations

import datetime
import enum
import json
from typing import Any

import msgspec


class ReleaseMode(enum.Enum):
    """How results leave a node: unchecked, after a check, or after the owner's decision."""

    AUTO = "auto"
    CHECK = "check"
    ASK = "ask"


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The terms under which researchers may run one plan; None means no limit.

    ``researchers`` and ``datasets`` (ids) are closed lists. ``arguments`` maps each permitted name to its rule. A
    result holds at most ``values`` numbers; ``texts`` names the entries of the result whose texts may be longer than
    64 characters; ``scalars`` names the scalars that may leave, and None lets none through the release gate. Without
    ``release`` the mode of the node holds.
    """

    grant_id: str
    sha256: str
    researchers: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None
    arguments: dict[str, Any] | None = None
    scalars: tuple[str, ...] | None = None
    texts: tuple[str, ...] = ()
    values: int | None = None
    runs: int | None = None
    until: datetime.datetime | None = None
    release: ReleaseMode | None = None
    note: str = ""


class GrantReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grant as its researcher is told of it; ``runs_left`` is None without a limit."""

    grant: Grant
    runs_left: int | None = None


def rule_text(form: Any) -> str:
    """Return the rule of an argument as people read it."""
    return form if isinstance(form, str) else f"one of {', '.join(map(json.dumps, form))}"
