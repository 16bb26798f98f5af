"""Protection from one researcher's flood: token buckets, quotas and their use, and refused researchers."""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.clock import seconds_from_now, timestamp, utc_now
from fedmon.common.errors import StorageError
from fedmon.common.settings.values import QuotaSettings
from fedmon.common.text import duration, plural, size
from fedmon.common.wire.envelope import Request
from fedmon.common.wire.messages import Ack, Approval, Monitor
from fedmon.common.wire.runs import Run
from fedmon.node.requests.dialect import command_of

if TYPE_CHECKING:
    from fedmon.node.registers.database import Database
    from fedmon.node.requests.audit import Audit

MAX_REFUSED = 200
REFUSED_KEPT = datetime.timedelta(days=30)
BURST_S = 10.0
"""The requests of this many seconds may come at once."""
UNREAD = 10.0
"""Messages beyond this many times the requests are dropped before they are read, those that do not count included."""
MAX_LATEST = 100
LINES_BURST, LINES_PER_S = 20, 2.0
"""Audit lines of requests that do not count; more of them are counted by the hour."""
CHANGES = frozenset({"approval", "run", "stop"})
_UNCOUNTED_ACTIONS = frozenset({"start", "stop", "resend"})
_MAX_KEYS = 1000
_MAX_RESEARCHERS = 500
_REFUSED = "refused"
_DAY = datetime.timedelta(days=1)


class Throttle:
    """Allows ``burst`` events of one key at once, and ``per_s`` a second in the long run; owned by one thread."""

    def __init__(self, *, burst: float, per_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._per_s, self._monotonic = float(burst), per_s, monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def left(self, key: str) -> float:
        """Return how many events of a key are allowed now."""
        now = self._monotonic()
        left, then = self._buckets.get(key, (self._burst, now))
        return min(self._burst, left + (now - then) * self._per_s)

    def used(self, key: str) -> int:
        """Return how many events of a key were counted and are not allowed again yet."""
        return round(self._burst - self.left(key))

    def wait_s(self, key: str) -> float:
        """Return in how many seconds one event of a key is allowed."""
        return (1.0 - self.left(key)) / self._per_s

    def allows(self, key: str, count: int = 1) -> bool:
        """Count events; return whether they are within the limit."""
        now = self._monotonic()  # before the look, so that no time between the two is lost
        left = self.left(key)
        allowed = left >= count
        self._buckets[key] = (left - count if allowed else left, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        return allowed


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A researcher that asked without being obeyed: how often, and when first and last."""

    researcher_id: str
    times: int
    first: datetime.datetime
    last: datetime.datetime


class RefusedResearchers:
    """The researchers that were refused, the latest last, for the owner to look at; of its database's thread.

    They are counted in memory, so that a flood costs no disk: `save` writes them down. An entry goes 30 days after its
    last request; of more than 200, those refused longest ago go.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        kept = msgspec.json.decode(database.mark(_REFUSED) or "[]", type=list[Refused])
        self._found = OrderedDict((each.researcher_id, each) for each in kept)
        self._changed = False

    def count(self, researcher_id: str) -> None:
        """Count one more refused request."""
        now = utc_now()
        known = self._found.pop(researcher_id, Refused(researcher_id=researcher_id, times=0, first=now, last=now))
        self._found[researcher_id] = msgspec.structs.replace(known, times=known.times + 1, last=now)
        if len(self._found) > MAX_REFUSED:
            self._found.popitem(last=False)
        self._changed = True

    def waiting(self, refuses: Callable[[str], object]) -> list[Refused]:
        """Return those that are still refused, the latest first."""
        since = utc_now() - REFUSED_KEPT
        return [each for each in reversed(self._found.values()) if each.last > since and refuses(each.researcher_id)]

    def save(self) -> None:
        """Write them down if there are new ones. Raises StorageError."""
        if self._changed:
            self._database.set_mark(_REFUSED, msgspec.json.encode(list(self._found.values())).decode())
            self._changed = False


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """A request is beyond a quota; ``retry_after_s`` is None if the end of that is not known."""

    quota: str
    reason: str
    retry_after_s: float | None


class Window:
    """A sum over the last ``span_s`` seconds; numbers within a sixtieth of it are forgotten together."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._parts = deque[tuple[float, float, int]]()  # when a part began, when the last of it came, and its sum

    def add(self, number: int) -> None:
        """Count now."""
        began = now = time.monotonic()
        if self._parts and now - self._parts[-1][0] < self._span_s / 60:
            began, _, before = self._parts.pop()
            number += before
        self._parts.append((began, now, number))

    def total(self) -> int:
        """Return the sum."""
        while self._parts and self._parts[0][1] <= time.monotonic() - self._span_s:
            self._parts.popleft()
        return sum(number for *_, number in self._parts)

    def wait_s(self, most: int) -> float:
        """Return in how many seconds the sum is below ``most``."""
        total, free_at = self.total(), 0.0
        for _, last, number in self._parts:
            if total < most:
                break
            total, free_at = total - number, last + self._span_s
        return max(0.0, free_at - time.monotonic())


class _Use:
    """The use by one researcher: changes, bytes in the audit, and refused requests by quota."""

    def __init__(self) -> None:
        self.changes, self.audit_bytes = Window(3_600), Window(86_400)
        self.refused = Counter[str]()


class Quotas:
    """The quotas of every researcher; belongs to the thread of its database; exceptions say so.

    Jobs, plans and kept bytes are read from the register and the folders of jobs; the rest is counted in memory.
    """

    def __init__(
        self, database: Database, audit: Audit, settings: QuotaSettings, *, runs_dir: Path, keep_s: float
    ) -> None:
        self._database, self._audit, self._runs_dir = database, audit, runs_dir
        self._uses: OrderedDict[str, _Use] = OrderedDict()  # who asked last is last
        self._folders: dict[str, tuple[str, int]] | None = None
        self._lines = Throttle(burst=LINES_BURST, per_s=LINES_PER_S)
        self._lock, self._unread = threading.Lock(), Counter[str]()
        self.counters: Counter[str] = Counter()
        self.settings, self._keep_s = settings, keep_s
        self._set_rate(settings.requests_per_s)

    def follow(self, settings: QuotaSettings, *, keep_s: float) -> None:
        """Follow other settings; a new rate begins with a full burst."""
        if settings.requests_per_s != self.settings.requests_per_s:
            self._set_rate(settings.requests_per_s)
        self.settings, self._keep_s = settings, keep_s

    def _set_rate(self, per_s: float) -> None:
        burst = max(1.0, per_s * BURST_S)
        self._requests = Throttle(burst=burst, per_s=per_s)
        self._messages = Throttle(burst=burst * UNREAD, per_s=per_s * UNREAD)
        self._unread_messages = Throttle(burst=burst * UNREAD, per_s=per_s * UNREAD)

    # --- judging ------------------------------------------------------------------------------------------------------

    def admits(self, sender: str) -> bool:
        """Tell whether a message is read at all: a flood costs a look at its topic. On the connection's thread."""
        if self._messages.allows(sender):
            return True
        with self._lock:
            self._unread[sender] += 1
        return False

    def is_flooded_by(self, sender: str) -> bool:
        """Count an unread message; return whether the broker should hold back more. On the connection's thread."""
        return not self._unread_messages.allows(sender)

    def latest(self) -> list[str]:
        """Return the obeyed researchers that asked last, at most 100."""
        return list(self._uses)[-MAX_LATEST:]

    def judge(self, request: Request, *, fetched: int = 0) -> Busy | None:
        """Count a request; return why it is refused, and when to try again, if it is beyond a quota.

        ``fetched`` are the researcher's plans that are being fetched.
        """
        who, is_change, busy = request.researcher_id, False, None
        self._uses[who] = use = self._uses.pop(who, None) or _Use()
        if len(self._uses) > _MAX_RESEARCHERS:
            self._uses.popitem(last=False)
        if not _is_counted(request):
            return None
        with contextlib.suppress(StorageError):  # what needs the register fails by itself, and says why
            # A repeat changes nothing: it gets the stored reply.
            is_change = command_of(request) in CHANGES and not self._is_known(
                "effects", researcher_id=who, request_id=request.id
            )
            busy = self._beyond(who, use) or (self._beyond_changes(request, use, fetched) if is_change else None)
        if busy is not None:
            self._count_refused(who, busy.quota)
        elif is_change:
            use.changes.add(1)
        return busy

    def is_written(self, request: Request) -> bool:
        """Tell whether a served request gets its own lines in the audit; if not, it is counted by the hour."""
        if _is_counted(request):
            return True
        who = request.researcher_id
        return self._lines.allows(who) and self._audit_bytes(self._uses[who]) < self.settings.audit_bytes_per_day

    def _beyond(self, who: str, use: _Use) -> Busy | None:
        if not self._requests.allows(who):
            allowed = f"{self.settings.requests_per_s:g} requests a second"
            return _busy("requests_per_s", allowed, self._requests.wait_s(who))
        most = self.settings.audit_bytes_per_day
        if self._audit_bytes(use) >= most:
            return _busy("audit_bytes_per_day", f"{size(most)} of audit a day", use.audit_bytes.wait_s(most))
        return None

    def _beyond_changes(self, request: Request, use: _Use, fetched: int) -> Busy | None:
        who, most = request.researcher_id, self.settings.changes_per_hour
        if use.changes.total() >= most:
            return _busy("changes_per_hour", f"{plural(most, 'change')} an hour", use.changes.wait_s(most))
        if command_of(request) == "approval":
            return self._beyond_plans(request, fetched)
        if isinstance(request, Run) and not self._is_known("runs", job_id=request.job_id):
            return self._beyond_jobs(who) or self._beyond_kept(who)
        return None

    def _beyond_plans(self, request: Request, fetched: int) -> Busy | None:
        who, most = request.researcher_id, self.settings.undecided_plans
        if isinstance(request, Approval) and self._is_known("plans", sha256=request.sha256):
            return None
        if self._undecided(who) + fetched < most:
            return self._beyond_kept(who)
        return Busy(
            quota="undecided_plans",
            reason=f"{plural(most, 'plan')} of yours may wait for the decision of this node's owner at a time "
            "(undecided_plans in [quota]): try again when one is decided",
            retry_after_s=None,
        )

    def _beyond_jobs(self, who: str) -> Busy | None:
        most = self.settings.jobs_per_day
        found = self._database.rows(
            "SELECT created FROM runs WHERE researcher_id = ? ORDER BY position DESC LIMIT 1 OFFSET ?", (who, most - 1)
        )
        if not found:
            return None
        wait_s = (datetime.datetime.fromisoformat(found[0]["created"]) + _DAY - utc_now()).total_seconds()
        return _busy("jobs_per_day", f"{plural(most, 'job')} a day", wait_s) if wait_s > 0 else None

    def _beyond_kept(self, who: str) -> Busy | None:
        kept_bytes, most = self.kept_bytes(who), self.settings.kept_bytes
        if kept_bytes < most:
            return None
        removed = seconds_from_now(-self._keep_s)
        found = self._database.rows(
            "SELECT min(ended) AS ended FROM runs WHERE researcher_id = ? AND is_over = 1 AND ended > ?",
            (who, timestamp(removed)),
        )
        ended = found[0]["ended"]
        return Busy(
            quota="kept_bytes",
            reason=f"this node keeps {size(kept_bytes)} of yours and its owner allows {size(most)} (kept_bytes in "
            "[quota]): try again when old results were removed, or its owner removed some",
            retry_after_s=None
            if ended is None
            else max(0.0, (datetime.datetime.fromisoformat(ended) - removed).total_seconds()),
        )

    def _count_refused(self, who: str, quota: str, number: int = 1) -> None:
        """Count refused requests; they leave one line an hour in the audit."""
        self._uses[who].refused[quota] += number
        self.counters["refused over quota"] += number
        self._audit.count("busy", [f"{who} {quota}"], number)

    # --- what is used -------------------------------------------------------------------------------------------------

    def researchers(self) -> set[str]:
        """Return everyone who used something."""
        found = self._database.rows("SELECT researcher_id FROM runs UNION SELECT researcher_id FROM plans")
        return {*self._uses, *(row["researcher_id"] for row in found if row["researcher_id"])}

    def used(self, who: str) -> dict[str, Any]:
        """Return a researcher's use of each quota, and the requests that were refused since the start."""
        day_ago = timestamp(utc_now() - _DAY)
        jobs = "SELECT count(*) AS number FROM runs WHERE researcher_id = ? AND created > ?"
        use = self._uses.get(who) or _Use()
        return {
            "requests": self._requests.used(who),
            "changes": use.changes.total(),
            "undecided_plans": self._undecided(who),
            "jobs": self._database.rows(jobs, (who, day_ago))[0]["number"],
            "kept_bytes": self.kept_bytes(who),
            "audit_bytes": self._audit_bytes(use),
            "refused": dict(use.refused),
        }

    def kept_bytes(self, who: str) -> int:
        """Return the bytes of a researcher's plans, of their messages that wait, and of the folders of their jobs."""
        if self._folders is None:
            jobs = self._database.rows("SELECT job_id, researcher_id FROM runs")
            owners = {row["job_id"]: row["researcher_id"] for row in jobs}
            present = [path for path in self._runs_dir.glob("*") if path.name in owners]
            self._folders = {path.name: (owners[path.name], _folder_bytes(path)) for path in present}
        plans = "SELECT sum(size_bytes) AS number FROM plans WHERE researcher_id = ? AND type = 'requested'"
        outbox = "SELECT sum(length(message)) AS number FROM outbox WHERE researcher_id = ?"
        found = sum(self._database.rows(query, (who,))[0]["number"] or 0 for query in (plans, outbox))
        return int(found) + sum(kept for owner, kept in self._folders.values() if owner == who)

    def job_ended(self, job_id: str, researcher_id: str) -> None:
        """Measure the folder of a job that has ended."""
        if self._folders is not None:
            self._folders[job_id] = (researcher_id, _folder_bytes(self._runs_dir / job_id))

    def measure_anew(self) -> None:
        """Measure the folders of all jobs at the next question, since files were removed."""
        self._folders = None

    def count_unread(self) -> None:
        """Count the messages that were not read."""
        with self._lock:
            unread, self._unread = self._unread, Counter()
        for who, number in unread.items():
            if who in self._uses:
                self._count_refused(who, "requests_per_s", number)
            else:
                self.counters["refused unread"] += number

    def _audit_bytes(self, use: _Use) -> int:
        """Return the bytes of the lines about a researcher in the last day."""
        for who, number in self._audit.take_bytes().items():
            if who in self._uses:
                self._uses[who].audit_bytes.add(number)
        return use.audit_bytes.total()

    def _undecided(self, who: str) -> int:
        counted = "SELECT count(*) AS number FROM plans WHERE researcher_id = ? AND status = 'pending'"
        return int(self._database.rows(counted, (who,))[0]["number"])

    def _is_known(self, table: str, **columns: str) -> bool:
        wanted = " AND ".join(f"{name} = ?" for name in columns)
        query = f"SELECT 1 FROM {table} WHERE {wanted}"  # noqa: S608 - our own names
        return bool(self._database.rows(query, tuple(columns.values())))


def _is_counted(request: Request) -> bool:
    return not (isinstance(request, Ack) or (isinstance(request, Monitor) and request.action in _UNCOUNTED_ACTIONS))


def _busy(quota: str, allowed: str, wait_s: float) -> Busy:
    wait_s = max(0.1, wait_s)
    reason = f"this node takes {allowed} from each researcher ({quota} in [quota]): try again in {duration(wait_s)}"
    return Busy(quota=quota, reason=reason, retry_after_s=round(wait_s + 0.0005, 3))  # up, so never too early


def _folder_bytes(folder: Path) -> int:
    """Return the bytes of the files in a folder; subfolders of its job went at its end."""
    found = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                found += entry.stat(follow_symlinks=False).st_size
    return found
