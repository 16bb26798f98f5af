"""Stored replies of state-changing requests: a request that is asked again has its effect once."""

from __future__ import annotations

import datetime
import hashlib
from collections import Counter
from collections.abc import Callable

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError
from fedmon.common.ids import made_at
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import ApprovalReply, Error
from fedmon.common.wire.runs import RunReply, StopReply
from fedmon.node.registers.database import Database, timestamp

KEEP_AFTER_EXPIRY = datetime.timedelta(days=1)
MAX_LIFETIME = datetime.timedelta(days=7)
"""A request that claims to live longer is forgotten after this all the same, so that no party can fill the disk."""

KEPT_REFUSALS, NEW_REFUSALS = 9_000, 1_000
"""The most refusals, of all researchers, that `purge` leaves, and the new ones until it is called again."""

_ENVELOPE = frozenset({"node_id", "instance", "session", "sequence", "expires", "protocol_version"})
_ADDED = (("datasets", None), ("purpose", ""))
"""Fields that earlier releases did not have, at their defaults: requests from before keep their digest."""
_decode = msgspec.json.Decoder(ApprovalReply | RunReply | StopReply | Error).decode


def content_digest(request: Request) -> str:
    """Return a digest of a request without its envelope, so that it stays the same when the request is repeated."""
    fields = msgspec.structs.asdict(request).items()
    content = {name: value for name, value in fields if name not in _ENVELOPE and (name, value) not in _ADDED}
    return hashlib.sha256(msgspec.json.encode([type(request).__name__, content], order="sorted")).hexdigest()


class Effects:
    """The stored replies of state-changing requests; belongs to the thread of its database.

    `once` commits an effect together with the id and the reply of its request; ``counters`` counts repeats.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._new_refusals = 0
        self.counters: Counter[str] = Counter()

    def stored_reply(self, researcher_id: str, request_id: str, *, content: str = "") -> bytes | None:
        """Return the reply that this researcher's request got before, or None when it is new.

        Raises ConflictError if another request (see `content_digest`) was made under this id, and if the register was
        restored after the request was made, so that its effect may be there without its reply.
        """
        found = self._database.rows(
            "SELECT reply, content FROM effects WHERE researcher_id = ? AND request_id = ?", (researcher_id, request_id)
        )
        if not found:
            restored, made = self._database.restored, made_at(request_id)
            if restored is not None and (made is None or made <= restored):
                raise ConflictError(
                    f"request {request_id!r} was made before this node restored its register at "
                    f"{restored.isoformat(timespec='seconds')}, or its id is no UUID of version 7, so it may have had "
                    "its effect already: check the state, and ask with a new id"
                )
            return None
        if content and found[0]["content"] and content != found[0]["content"]:
            raise ConflictError(
                f"request {request_id!r} of researcher {researcher_id} asked something else before: use a new id"
            )
        return bytes(found[0]["reply"])

    def remember(
        self,
        researcher_id: str,
        request_id: str,
        reply: bytes,
        expires: datetime.datetime,
        *,
        content: str = "",
    ) -> None:
        """Keep a reply until one day after the request expires, and for a day at least, unless the id has one.

        Without ``content`` it is a refusal: kept so that the request is not served later, such as after the clock went
        back.
        """
        now = utc_now()
        keep_until = max(now, min(expires, now + MAX_LIFETIME)) + KEEP_AFTER_EXPIRY
        self._database.execute(
            "INSERT OR IGNORE INTO effects (researcher_id, request_id, content, reply, keep_until) "
            "VALUES (?, ?, ?, ?, ?)",
            (researcher_id, request_id, content, reply, timestamp(keep_until)),
        )
        self._new_refusals += not content
        if self._new_refusals >= NEW_REFUSALS:
            self.purge()

    def once(self, request: Request, effect: Callable[[], Reply | None]) -> Reply | None:
        """Make an effect, its id and its reply one commit; a repeat gets the stored reply and is counted."""
        content = content_digest(request)
        stored = self.stored_reply(request.researcher_id, request.id, content=content)
        reply: Reply | None
        if stored is not None:
            self.counters["repeated"] += 1
            reply = _decode(stored)
            return reply
        with self._database.transaction():
            reply = effect()
            if reply is not None:
                encoded = msgspec.json.encode(reply)
                self.remember(request.researcher_id, request.id, encoded, request.expires, content=content)
        return reply

    def purge(self, *, now: datetime.datetime | None = None) -> int:
        """Drop the replies whose time is over, and of the refusals all but the latest; return how many."""
        self._new_refusals = 0
        return self._database.execute(
            "DELETE FROM effects WHERE keep_until < ?1 OR rowid IN (SELECT rowid FROM effects WHERE content = '' "
            "ORDER BY keep_until DESC, rowid DESC LIMIT -1 OFFSET ?2)",
            (timestamp(now or utc_now()), KEPT_REFUSALS),
        )
