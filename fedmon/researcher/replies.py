"""Replies that nobody has taken yet: kept in order, on disk for the main instance, until somebody takes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from fedmon.common.errors import InvalidMessageError, StorageError
from fedmon.common.wire.codec import decode_reply
from fedmon.common.wire.messages import PlanDecision, Reply
from fedmon.researcher.pending import Waiting
from fedmon.researcher.tally import Tally

TAKEN_SOON_S = 0.02
"""A caller that takes its replies within this time never makes the disk write."""
MAX_KEPT = 10_000
MAX_INCOMING = 20_000
MAX_SEEN = 10_000
STOP_WAITS_S = 5.0


class DurableQueue(Protocol):
    """A queue on disk, as keeping replies needs it; used by one thread."""

    def add_many(self, documents: Sequence[Mapping[str, Any]], *, ids: Sequence[str | None]) -> list[int]:
        """Store documents in one transaction, remembering their ids as seen; return their keys, which rise."""

    def pending(self) -> list[tuple[int, dict[str, Any], bool]]:
        """Return what is stored: key, document, and whether it was marked as handed over, in order."""

    def mark_handed(self, keys: Collection[int]) -> None:
        """Note on disk that these are being handed over."""

    def discard(self, keys: Collection[int]) -> None:
        """Take documents out in one transaction."""

    def seen(self, document_id: str) -> bool:
        """Tell whether a document with this id was ever stored."""

    def close(self) -> None:
        """Give the folder back."""


class OnKept(Protocol):
    """Hears under which key a message is safe, and whether it came for the first time."""

    def __call__(self, key: int, *, first: bool) -> None:
        """Hear it, on the thread that writes."""


def _nothing(key: int, *, first: bool) -> None:
    """Stand in for a caller that does not wait until its message is safe."""


class Incoming(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A message on its way to the disk."""

    message: Reply | PlanDecision
    only_once: bool = False
    on_kept: OnKept = _nothing


class KeptReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that nobody had taken; ``redelivered`` when a crash left open whether somebody had."""

    key: int
    message: Reply | PlanDecision
    redelivered: bool = False


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    payload: bytes
    command: str
    redelivered: bool = False


class _Watched(msgspec.Struct, kw_only=True):
    """A request whose caller still waits: when to look, how many answers were stored, and as what."""

    due_at: float
    stored: int = 0
    kept: dict[int, _Kept] = {}


class Replies:
    """Keeps late and unknown replies, and answers that their caller does not take soon.

    Bounded: when 10,000 are kept the oldest goes, and is counted. Every method is safe from any thread; one thread of
    its own writes to the disk, many replies at once. Without a queue everything is kept in memory.
    """

    def __init__(self, queue: DurableQueue | None, *, tally: Tally, limit: int = MAX_KEPT) -> None:
        self._queue, self._tally, self._limit = queue, tally, limit
        self._changed = threading.Condition()
        self._kept: dict[int, _Kept] = {}
        self._incoming: list[Incoming] = []
        self._watched: dict[Waiting, _Watched] = {}
        self._gone: list[int] = []
        self._to_mark: list[int] = []
        self._handed: dict[int, list[int]] = {}
        self._seen: dict[str, None] = {}
        self._last_key = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="fedmon-replies", daemon=True)
        for key, document, handed in queue.pending() if queue is not None else ():
            self._recover(key, document, handed=handed)

    @property
    def durable(self) -> bool:
        """Tell whether what is kept outlives this process."""
        return self._queue is not None

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is to be written, and end; what was handed over counts as taken."""
        with self._changed:
            self._stopping = True
            for keys in self._handed.values():
                self._gone.extend(keys)
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(STOP_WAITS_S)
        if self._queue is not None:
            self._queue.close()

    # --- putting -----------------------------------------------------------------------------------------------------

    def keep(self, message: Reply | PlanDecision, *, only_once: bool = False, on_kept: OnKept = _nothing) -> None:
        """Keep a message that nobody waits for; ``on_kept(key, first)`` hears when it is safe, on the writing thread.

        With ``only_once`` a message whose id was seen before, in this process or an earlier one, is not kept again.
        """
        with self._changed:
            if len(self._incoming) >= MAX_INCOMING:
                self._tally.count("replies dropped: the disk is too slow", message.node_id)
                return
            self._incoming.append(Incoming(message=message, only_once=only_once, on_kept=on_kept))
            self._changed.notify_all()

    def watch(self, waiting: Waiting) -> None:
        """Keep the answers of a request when its caller does not take them soon."""
        if self._queue is not None and waiting not in self._watched:
            with self._changed:
                self._watched[waiting] = _Watched(due_at=time.monotonic() + TAKEN_SOON_S)
                if len(self._watched) == 1:
                    self._changed.notify_all()

    def ended(self, waiting: Waiting, answers: Sequence[Reply]) -> None:
        """Forget the answers of a request when its caller took them; else keep those that were not kept yet."""
        if waiting.taken and waiting not in self._watched:
            return
        with self._changed:
            watched = self._watched.pop(waiting, None) or _Watched(due_at=0.0)
            if waiting.taken:
                self._gone.extend(watched.kept)
            else:
                self._kept.update(watched.kept)
                self._incoming.extend(Incoming(message=reply) for reply in answers[watched.stored :])
            self._changed.notify_all()

    # --- taking ------------------------------------------------------------------------------------------------------

    def take(
        self, commands: Collection[str] | None = None, *, limit: int | None = None, timeout_s: float = 0.0
    ) -> list[KeptReply]:
        """Take what is kept of these commands, or of all, oldest first; what is not asked for stays.

        Waits up to ``timeout_s`` for the first. What a thread took leaves the disk when it takes again, or at `stop`:
        after a crash in between, it comes again marked ``redelivered``.
        """
        with self._changed:
            self._gone.extend(self._handed.pop(threading.get_ident(), ()))
            self._changed.wait_for(lambda: self._stopping or self._matching(commands), timeout=timeout_s)
            keys = self._matching(commands)[:limit]
            taken = [(key, self._kept.pop(key)) for key in keys]
            if keys and self._queue is not None:
                self._handed[threading.get_ident()] = keys
                self._to_mark.extend(keys)
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._to_mark, timeout=STOP_WAITS_S)
            else:
                self._changed.notify_all()
        return [KeptReply(key=key, message=_decoded(kept), redelivered=kept.redelivered) for key, kept in taken]

    def kept(self, command: str) -> list[tuple[int, Reply | PlanDecision]]:
        """Return what is kept of one command, and leave it."""
        with self._changed:
            found = [(key, self._kept[key]) for key in self._matching([command])]
        return [(key, _decoded(kept)) for key, kept in found]

    def keeps(self, key: int) -> bool:
        """Tell whether nobody has taken this one."""
        return key in self._kept

    def discard(self, key: int) -> None:
        """Take one out: somebody has it."""
        with self._changed:
            if self._kept.pop(key, None) is not None:
                self._gone.append(key)
                self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._kept)

    def _matching(self, commands: Collection[str] | None) -> list[int]:
        return sorted(key for key, kept in self._kept.items() if commands is None or kept.command in commands)

    # --- the thread that writes --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._incoming or self._gone or self._to_mark or self._stopping or self._is_due()):
                    self._changed.wait(self._pause_s())
                ending = self._stopping
                incoming, self._incoming = self._incoming, []
                gone, self._gone = self._gone, []
                marks = list(self._to_mark)
                answers = self._answers_due()
            self._change_queue(marks, gone)
            self._store(incoming, answers)
            with self._changed:
                if ending and not (self._incoming or self._gone):
                    return

    def _is_due(self) -> bool:
        now = time.monotonic()
        return any(watched.due_at <= now for watched in self._watched.values())

    def _pause_s(self) -> float | None:
        if not self._watched:
            return None
        return max(0.0, min(watched.due_at for watched in self._watched.values()) - time.monotonic())

    def _answers_due(self) -> list[tuple[Waiting, Reply]]:
        now = time.monotonic()
        found: list[tuple[Waiting, Reply]] = []
        for waiting, watched in self._watched.items():
            if watched.due_at <= now:
                new = waiting.answered_since(watched.stored)
                found.extend((waiting, answer.reply) for answer in new)
                watched.stored += len(new)
                watched.due_at = now + TAKEN_SOON_S
        return found

    def _change_queue(self, marks: list[int], gone: list[int]) -> None:
        if self._queue is None or not (marks or gone):
            return
        try:
            if marks:
                self._queue.mark_handed(marks)
            if gone:
                self._queue.discard(gone)
        except StorageError as error:
            self._tally.count("failures of the reply queue", str(error))
        with self._changed:
            del self._to_mark[: len(marks)]
            self._changed.notify_all()

    def _store(self, incoming: list[Incoming], answers: list[tuple[Waiting, Reply]]) -> None:
        new: list[Incoming] = []
        repeated: list[Incoming] = []
        for one in incoming:
            (repeated if one.only_once and self._was_seen(one) else new).append(one)
        messages = [one.message for one in new] + [reply for _, reply in answers]
        entries = [_Kept(payload=_encoded(message), command=_command(message)) for message in messages]
        ids = [one.message.id if one.only_once else None for one in new] + [None] * len(answers)
        keys, safe = self._keys_for(entries, ids)
        with self._changed:
            for one, key, entry in zip(new, keys, entries, strict=False):
                if safe or not one.only_once:
                    self._kept[key] = entry
            for (waiting, _), key, entry in zip(answers, keys[len(new) :], entries[len(new) :], strict=True):
                self._settle_answer(waiting, key, entry)
            self._keep_bounded()
            self._changed.notify_all()
        if safe:
            for one, key in zip(new, keys, strict=False):
                one.on_kept(key, first=True)
        for one in repeated:
            one.on_kept(0, first=False)

    def _was_seen(self, one: Incoming) -> bool:
        """Tell whether a message came before; here, so that two copies of one in one batch are noticed as well."""
        if one.message.id in self._seen:
            return True
        if self._queue is not None and self._queue.seen(one.message.id):
            return True
        self._seen[one.message.id] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return False

    def _keys_for(self, entries: list[_Kept], ids: list[str | None]) -> tuple[list[int], bool]:
        """Write entries and return their keys, and whether they are safe; those that the disk refuses get keys too."""
        safe = True
        if self._queue is not None and entries:
            documents = [{"payload": entry.payload.decode()} for entry in entries]
            try:
                keys = self._queue.add_many(documents, ids=ids)
                self._last_key = max(self._last_key, *keys)
                return keys, True
            except StorageError as error:
                self._tally.count("failures of the reply queue", str(error))
                for seen in ids:
                    if seen is not None:
                        self._seen.pop(seen, None)
                safe = False
        first = self._last_key + 1
        self._last_key += len(entries)
        return list(range(first, self._last_key + 1)), safe

    def _settle_answer(self, waiting: Waiting, key: int, entry: _Kept) -> None:
        watched = self._watched.get(waiting)
        if watched is not None:
            watched.kept[key] = entry
        elif waiting.taken:
            self._gone.append(key)
        else:
            self._kept[key] = entry

    def _keep_bounded(self) -> None:
        for key in sorted(self._kept)[: max(0, len(self._kept) - self._limit)]:
            del self._kept[key]
            self._gone.append(key)
            self._tally.count("kept replies dropped: nobody takes them", f"more than {self._limit}")

    def _recover(self, key: int, document: Mapping[str, Any], *, handed: bool) -> None:
        payload = document.get("payload")
        try:
            message = decode_reply(payload.encode() if isinstance(payload, str) else b"")
        except InvalidMessageError as error:
            self._tally.count("unreadable entries of the reply queue", error.reason)
            self._gone.append(key)
            return
        self._kept[key] = _Kept(payload=_encoded(message), command=_command(message), redelivered=handed)
        self._last_key = max(self._last_key, key)


def _encoded(message: Reply | PlanDecision) -> bytes:
    return msgspec.json.encode(message)


def _decoded(kept: _Kept) -> Reply | PlanDecision:
    return decode_reply(kept.payload)


def _command(message: Reply | PlanDecision) -> str:
    return str(message.__struct_config__.tag)
