"""Grants and the requests for them: proposed from requests and declarations, kept, ended, and asked of by runs."""

from __future__ import annotations

import ast
import datetime
import functools
import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidInputError
from fedmon.common.plan_source import parsed
from fedmon.common.text import joined, plural, shorten
from fedmon.common.wire.grants import Grant, GrantReport, ReleaseMode, rule_text
from fedmon.common.wire.runs import Run
from fedmon.node.registers.database import Database
from fedmon.node.registers.plan_check import FORMS, MAX_DECLARED_BYTES, TYPES, rule

EVERY = "*"
NEVER = "never"
DEFAULT_DAYS = 366
MAX_REQUESTS = 20
"""The requests of one researcher for one plan that are kept: open ones before decided ones, the latest first."""
_SHOWN, _MOST_REASON = 60, 300


class Declared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The declarations of a plan's class: argument rules, scalars, entries with long texts, and numbers of a result."""

    arguments: dict[str, Any] = {}
    scalars: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    values: int | None = None


class GrantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a researcher for a plan; ``datasets`` are ids, None for all that are listed to them."""

    researcher_id: str
    datasets: tuple[str, ...] | None
    purpose: str
    is_open: bool


class GrantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A grant that has not ended; ``used`` runs were admitted."""

    grant: Grant
    used: int

    @property
    def runs_left(self) -> int | None:
        """The number of runs that it still admits; None without a limit."""
        return None if self.grant.runs is None else max(0, self.grant.runs - self.used)

    def is_for(self, researcher_id: str) -> bool:
        """Tell whether a researcher is among those that it names."""
        return self.grant.researchers is None or researcher_id in self.grant.researchers

    def is_in_time(self) -> bool:
        """Tell whether its time is not over."""
        return self.grant.until is None or utc_now() < self.grant.until


class GrantRegister:
    """Grants, requests for them, and declarations of plans; belongs to the thread of its database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- grants ------------------------------------------------------------------------------------------------------

    def add(self, grant: Grant, time: str) -> None:
        """Keep a new grant, and close the requests of its researchers; one that is here stays as it is."""
        self._database.execute(
            "INSERT OR IGNORE INTO grants (grant_id, sha256, content, created) VALUES (?, ?, ?, ?)",
            (grant.grant_id, grant.sha256, msgspec.json.encode(grant).decode(), time),
        )
        self._database.execute(
            "UPDATE wishes SET is_open = 0 WHERE plan_id = (SELECT plan_id FROM plans WHERE sha256 = ?) "
            "AND researcher_id IN (SELECT value FROM json_each(ifnull(?, json_array(researcher_id))))",
            (grant.sha256, None if grant.researchers is None else json.dumps(grant.researchers)),
        )

    def end(self, time: str, sha256: str | None = None) -> None:
        """End the grants of a plan, or of all plans, and close the requests for one that is rejected."""
        self._database.execute(
            "UPDATE grants SET ended = ? WHERE ended IS NULL AND sha256 = ifnull(?, sha256)", (time, sha256)
        )
        self._database.execute(
            "UPDATE wishes SET is_open = 0 WHERE plan_id = "
            "(SELECT plan_id FROM plans WHERE sha256 = ? AND status = 'rejected')",
            (sha256,),
        )

    def use(self, grant_id: str) -> None:
        """Count a run that a grant admitted."""
        self._database.execute("UPDATE grants SET used = used + 1 WHERE grant_id = ?", (grant_id,))

    def of(self, sha256: str) -> list[GrantRecord]:
        """Return the grants of a plan that have not ended, oldest first."""
        rows = self._database.rows("SELECT * FROM grants WHERE sha256 = ? AND ended IS NULL ORDER BY rowid", (sha256,))
        return [GrantRecord(grant=msgspec.json.decode(row["content"], type=Grant), used=row["used"]) for row in rows]

    def reports(self, sha256: str, researcher_id: str, seen: Collection[str]) -> list[GrantReport]:
        """Return the grants of a plan that hold for a researcher, as one who sees these datasets is told of them."""
        return [
            GrantReport(grant=told(record.grant, researcher_id, seen), runs_left=record.runs_left)
            for record in self.of(sha256)
            if record.is_for(researcher_id) and record.is_in_time()
        ]

    def without_limit(self) -> int:
        """Count the grants for every researcher and without an end."""
        counted = (
            "SELECT count(*) AS n FROM grants WHERE ended IS NULL AND json_extract(content, '$.researchers') IS NULL "
            "AND json_extract(content, '$.until') IS NULL"
        )
        return int(self._database.rows(counted)[0]["n"])

    # --- requests and declarations -----------------------------------------------------------------------------------

    def ask(
        self,
        plan_id: str,
        sha256: str,
        researcher_id: str,
        time: str,
        *,
        datasets: Sequence[str] | None,
        purpose: str,
        seen: Collection[str] | None,
    ) -> bool:
        """Remember who asked, and keep the request unless a grant covers it; return whether it waits for the owner.

        A repeated one stays decided. A grant covers a request for all datasets if it has all that were ``seen``.
        """
        self._database.execute(
            "INSERT INTO requesters VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET requested = excluded.requested",
            (plan_id, researcher_id, time),
        )
        wishes = self.wishes(plan_id)
        decided = [wish for wish in wishes if wish.researcher_id == researcher_id and not wish.is_open]
        is_told = not purpose or any(wish.purpose == purpose for wish in decided)
        is_decided = datasets is None and any(wish.datasets is None for wish in decided)
        wanted = seen if datasets is None else datasets
        for record in self.of(sha256):
            grant = record.grant
            covers = grant.datasets is None or is_decided or (wanted is not None and set(wanted) <= set(grant.datasets))
            is_usable = record.is_for(researcher_id) and record.is_in_time() and record.runs_left != 0
            if covers and is_usable and (is_told or grant.arguments is None):
                return False
        request = plan_id, researcher_id, None if datasets is None else json.dumps(list(datasets)), purpose
        # After a rejection or a reset a new request replaces those that were decided before.
        self._database.execute(
            "DELETE FROM wishes WHERE plan_id = ? AND researcher_id = ? AND NOT is_open "
            "AND plan_id IN (SELECT plan_id FROM plans WHERE status != 'approved')",
            (plan_id, researcher_id),
        )
        again = (
            "UPDATE wishes SET is_open = 1 WHERE plan_id = ? AND researcher_id = ? AND datasets IS ? AND purpose = ?"
        )
        if not self._database.execute(again, request):
            self._database.execute("INSERT INTO wishes VALUES (?, ?, ?, ?, 1)", request)
            self._database.execute(
                "DELETE FROM wishes WHERE rowid IN (SELECT rowid FROM wishes WHERE plan_id = ? AND researcher_id = ? "
                "ORDER BY is_open DESC, rowid DESC LIMIT -1 OFFSET ?)",
                (plan_id, researcher_id, MAX_REQUESTS),
            )
        return True

    def wishes(self, plan_id: str) -> list[GrantRequest]:
        """Return the requests for a plan, oldest first."""
        rows = self._database.rows("SELECT * FROM wishes WHERE plan_id = ? ORDER BY rowid", (plan_id,))
        decoded = [{**row, "datasets": row["datasets"] and msgspec.json.decode(row["datasets"])} for row in rows]
        return msgspec.convert(decoded, list[GrantRequest], strict=False)  # of truth SQLite keeps 0 or 1

    def requesters(self, plan_id: str) -> tuple[str, ...]:
        """Return the researchers that asked for a plan, in the order they did."""
        rows = self._database.rows("SELECT researcher_id FROM requesters WHERE plan_id = ? ORDER BY rowid", (plan_id,))
        return tuple(row["researcher_id"] for row in rows)

    def asked_again(self) -> dict[str, dict[str, str]]:
        """Map the ids of approved plans with open requests to those who ask, each with the time, the latest last."""
        found: dict[str, dict[str, str]] = {}
        for row in self._database.rows(
            "SELECT plan_id, researcher_id, requested FROM wishes JOIN requesters USING (plan_id, researcher_id) "
            "WHERE is_open AND plan_id IN (SELECT plan_id FROM plans WHERE status = 'approved') ORDER BY requested"
        ):
            found.setdefault(row["plan_id"], {})[row["researcher_id"]] = row["requested"]
        return found

    def declare(self, sha256: str, declared: Declared) -> None:
        """Keep the declarations that a plan's check found."""
        self._database.execute(
            "INSERT INTO declarations (sha256, content) VALUES (?, ?) "
            "ON CONFLICT DO UPDATE SET content = excluded.content",
            (sha256, msgspec.json.encode(declared).decode()),
        )

    def declared(self, sha256: str) -> Declared | None:
        """Return the declarations of a plan; None if it was not checked yet."""
        found = self._database.rows("SELECT content FROM declarations WHERE sha256 = ?", (sha256,))
        return msgspec.json.decode(found[0]["content"], type=Declared) if found else None


def told(grant: Grant, researcher_id: str, seen: Collection[str]) -> Grant:
    """Return a grant as one of its researchers is told of it: the others stay unnamed, and datasets not ``seen``."""
    if grant.researchers is not None:
        grant = msgspec.structs.replace(grant, researchers=(researcher_id,))
    if grant.datasets is None:
        return grant
    return msgspec.structs.replace(grant, datasets=tuple(each for each in grant.datasets if each in seen))


# --- admission --------------------------------------------------------------------------------------------------------


def grant_for(records: Sequence[GrantRecord], run: Run, dataset_id: str | None, seen: Mapping[str, str]) -> Grant | str:
    """Return the grant that admits a run; without one, how the run is outside the grant that comes closest.

    Of granted datasets only those are named that the researcher has ``seen``, which maps their ids to names.
    """
    checks: tuple[Callable[[GrantRecord], str], ...] = (
        lambda record: "" if record.is_for(run.researcher_id) else "no grant names you",
        lambda record: "" if record.is_in_time() else f"your grant held until {record.grant.until:%Y-%m-%d %H:%M} UTC",
        lambda record: (
            f"its {plural(record.grant.runs or 0, 'run is', 'runs are')} used up" if record.runs_left == 0 else ""
        ),
        lambda record: _dataset_problem(record.grant, dataset_id, seen),
        lambda record: arguments_problem(record.grant.arguments, run.arguments),
    )
    nearest, reason = -1, "no grant is left"
    for record in records:
        number, problem = next(
            ((number, text) for number, check in enumerate(checks) if (text := check(record))), (0, "")
        )
        if not problem:
            return record.grant
        if number > nearest:
            nearest, reason = number, problem
    return shorten(reason, _MOST_REASON)


def request_words(name: str, dataset: str | None, reason: str) -> str:
    """Return the words that ask owners for more, in Python and in a shell; names are the same on many nodes."""
    python = f"fed.approve(plan, {f'datasets={[dataset]}, ' if dataset else ''}purpose={reason!r})"
    words = [f"{name}.py", *(["--dataset", dataset] if dataset else []), "--purpose", reason]
    return f"{python}, or in a shell: fedmon plan request {shlex.join(words)}"


def _dataset_problem(grant: Grant, dataset_id: str | None, seen: Mapping[str, str]) -> str:
    if dataset_id is None or grant.datasets is None or dataset_id in grant.datasets:
        return ""
    granted = joined([seen[each] for each in grant.datasets if each in seen]) or "none"
    return f"dataset {seen[dataset_id]} is not granted (granted: {granted})"


def arguments_problem(rules: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> str:
    """Return how arguments are outside the rules of a grant or a declaration, if they are; None admits all."""
    if rules is None:
        return ""
    for name, value in arguments.items():
        if name not in rules:
            return f"argument {name[:_SHOWN]!r} is not among its arguments ({', '.join(rules) or 'it takes none'})"
        if not admits(rules[name], value):
            shown = shorten(json.dumps(value), _SHOWN)
            return f"argument {name[:_SHOWN]!r} is {shown}, and its rule is {rule_text(rules[name])}"
    return ""


# --- rules of arguments -----------------------------------------------------------------------------------------------


def admits(form: Any, value: Any) -> bool:
    """Tell whether a value follows a rule in its canonical form, as `plan_check.rule` returns it."""
    return _test(form if isinstance(form, str) else repr(list(form)))(value)


@functools.lru_cache(maxsize=256)
def _test(text: str) -> Callable[[Any], bool]:
    """Return the test of values by a rule, of which the text is read once, and not for each value of a list."""
    node = _expression(text)
    form = rule(node)
    if isinstance(form, list):
        values = {(isinstance(each, bool), each) for each in form}  # 1 stands for 1.0 too, and not for True
        return lambda value: isinstance(value, str | int | float | None) and (isinstance(value, bool), value) in values
    if isinstance(node, ast.Call):
        numbers_of = range(*map(ast.literal_eval, node.args))
        return lambda value: type(value) is int and value in numbers_of
    if isinstance(node, ast.List):
        inner = _test(ast.unparse(node.elts[0]))
        return lambda value: isinstance(value, list) and all(map(inner, value))
    types = TYPES[form]
    return lambda value: type(value) in types


def _expression(text: str) -> ast.expr:
    """Return the tree of one expression. Raises SyntaxError and ValueError."""
    match parsed(text).body:
        case [ast.Expr(value=expression)]:
            return expression
    raise ValueError(f"{text[:_SHOWN]!r} is no expression")


def checked_rules(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return rules that an owner wrote, in their canonical form. Raises InvalidInputError."""
    rules: dict[str, Any] = {}
    for name, form in given.items():
        try:
            # A text is a rule as a plan writes it; a list names the admitted values.
            rules[name] = rule(_expression(form if isinstance(form, str) else repr(form)))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise InvalidInputError(f"the rule of argument {name!r} cannot be {form!r:.80}: {FORMS}") from None
    if len(json.dumps(rules)) > MAX_DECLARED_BYTES:
        raise InvalidInputError(f"the rules take more than {MAX_DECLARED_BYTES} bytes")
    return rules


# --- proposals --------------------------------------------------------------------------------------------------------


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms that an owner gave with an approval; None leaves one to its default, and ``*`` is no limit."""

    researchers: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None
    arguments: dict[str, Any] | None = None
    runs: int | None = None
    until: str | None = None
    values: int | None = None
    release: ReleaseMode | None = None


def until_of(text: str | None) -> datetime.datetime | None:
    """Return when a grant ends: after a day (UTC), at a moment, a year from now by default, or never.

    Raises InvalidInputError.
    """
    if text == NEVER:
        return None
    midnight = utc_now().replace(hour=0, minute=0, second=0, microsecond=0)
    if text is None:
        return midnight + datetime.timedelta(days=DEFAULT_DAYS)
    try:
        moment = datetime.datetime.fromisoformat(text)
        if len(text) <= len("2027-06-30"):
            moment += datetime.timedelta(days=1)
        moment = moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise InvalidInputError(f"until {text!r}: give a day such as 2027-06-30, a moment, or {NEVER!r}") from None
    if moment <= utc_now():
        raise InvalidInputError(f"until {text}: that is over already")
    return moment


def wished_datasets(
    researchers: Collection[str] | None,
    wishes: Sequence[GrantRequest],
    listed: Callable[[str], Collection[str]],
) -> tuple[str, ...] | None:
    """Return the datasets that researchers asked for, and for those who named none all that are listed to them.

    Without a limit on researchers and without named datasets there is none on datasets.
    """
    by_id: dict[str, list[tuple[str, ...] | None]] = {}
    for wish in wishes:
        by_id.setdefault(wish.researcher_id, []).append(wish.datasets)
    if researchers is None:
        if not wishes or any(None in each for each in by_id.values()):
            return None
        researchers = by_id
    found: dict[str, None] = {}
    for researcher_id in researchers:
        for named in by_id.get(researcher_id, [None]):
            found |= dict.fromkeys(listed(researcher_id) if named is None else named)
    return tuple(found)
