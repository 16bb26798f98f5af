"""The durable queue of replies: kept in order, on disk for instance ``main``, until they are taken."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedmon.common.actor import Actor, BusyError
from fedmon.common.errors import InvalidMessageError, StorageError
from fedmon.researcher.replies.content import Keepable, KeptReply, kept, recovered, stored
from fedmon.researcher.session.inbox import Tally

if TYPE_CHECKING:
    from fedmon.common.store.queue import TasksQueue

logger = logging.getLogger(__name__)

MAX_KEPT = 10_000
MAX_KEPT_BYTES = 16 * 2**20
_LAST_TO_GO = ("job-outcome", "plan-decision")
"""These are announced once; the result of a job can be asked for again, a decision cannot."""
MAX_INCOMING = 20_000
MAX_SEEN = 10_000
STOP_WAITS_S = 5.0
OVERLOADED_AFTER_S = 60.0
FIRST_MEMORY_KEY = 2**62
"""Keys from here on are of messages that the disk refused; no row of a queue has such a number."""

K = TypeVar("K")
OnKept = Callable[[int, bool], object]
"""Called with the key of a message that is stored, and whether it came for the first time."""


class _Incoming(NamedTuple):
    """A message on its way to the disk."""

    message: Keepable
    only_once: bool
    on_kept: OnKept | None

    @property
    def seen_as(self) -> str | None:
        """The key by which a copy is known; the id of an outcome is that of its job, the same at all nodes of a run."""
        return f"{self.message.node_id}/{self.message.id}" if self.only_once else None

    def stored(self, key: int, *, first: bool) -> None:
        try:
            if self.on_kept is not None:
                self.on_kept(key, first)
        except Exception:  # such as no thread for a callback: the other messages of this write have theirs
            logger.exception("the step after keeping message %s failed", self.message.id)


class Replies:
    """Keeps late and unknown replies, and answers that their caller did not take.

    Bounded: beyond 10,000, or 16 MiB, the oldest goes and is counted, outcomes of jobs and then decisions of owners
    last. Every method is safe from any thread; one thread writes to the disk, many replies at once. Without a queue
    everything is kept in memory.
    """

    def __init__(self, queue: TasksQueue | None, *, tally: Tally, limit: int = MAX_KEPT) -> None:
        self.durable = queue is not None
        self.released = False
        self._queue, self._tally, self._limit = queue, tally, limit
        self._changed = threading.Condition()
        self._kept: dict[int, KeptReply] = {}  # by key, rising, so that the oldest is found first
        self._gone: list[int] = []
        for key, document, handed in queue.pending() if queue is not None else ():
            try:
                self._kept[key] = kept(key, recovered(document), document, redelivered=handed)
            except InvalidMessageError as error:
                tally.count("unreadable entries of the reply queue", error.reason)
                self._gone.append(key)
        self._seen: dict[str, None] = {}
        self._next_key = FIRST_MEMORY_KEY
        self._incoming: list[_Incoming] = []
        self._to_mark: list[int] = []
        self._handed: dict[int, list[int]] = {}
        self._actor = Actor("fedmon-replies")

    def start(self) -> None:
        """Start the writing thread; it first removes unreadable entries."""
        self._actor.post(self._write)
        self._actor.start()

    def release(self) -> None:
        """End every wait of `take`."""
        with self._changed:
            self.released = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Write the rest, and end; replies that were handed over count as taken."""
        with self._changed:
            for keys in self._handed.values():
                self._gone.extend(keys)
        self._actor.post(self._write)
        self._actor.close(timeout_s=STOP_WAITS_S)
        if self._queue is not None:
            self._queue.close()

    # --- putting -----------------------------------------------------------------------------------------------------

    def keep(self, message: Keepable, *, only_once: bool = False, on_kept: OnKept | None = None) -> None:
        """Keep a message that no caller waits for; ``on_kept`` is called on the writing thread when it is safe.

        With ``only_once`` a message of the same node and id as one before, also of an earlier process, is not kept.
        """
        with self._changed:
            if len(self._incoming) >= MAX_INCOMING:
                self._tally.count("replies dropped: the disk is too slow", message.node_id)
                return
            self._incoming.append(_Incoming(message=message, only_once=only_once, on_kept=on_kept))
            if len(self._incoming) == 1:
                self._actor.post(self._write)

    # --- taking ------------------------------------------------------------------------------------------------------

    def take(
        self,
        *,
        wanted: Callable[[KeptReply], bool] | None = None,
        limit: int | None = None,
        timeout_s: float | None = 0.0,
        into: list[KeptReply] | None = None,
    ) -> list[KeptReply]:
        """Take kept replies, or those that ``wanted`` chooses, oldest first; the others stay.

        Waits up to ``timeout_s``, None for ever, for the first. Replies that a thread took leave the disk when it takes
        again, unless ``into`` holds them, at `confirm`, or at `stop`: after a crash in between, they come again marked
        ``redelivered``. Those taken now are added to ``into``.
        """
        with self._changed:
            if not into:
                self._gone.extend(self._handed.pop(threading.get_ident(), ()))
                self._actor.post(self._write)
            self._changed.wait_for(
                lambda: self.released or next(self._matching(wanted), None) is not None, timeout=timeout_s
            )
            keys = list(itertools.islice(self._matching(wanted), limit))
            taken = [self._kept.pop(key) for key in keys]
            if into is not None:
                into += taken
            if keys and self.durable:
                self._handed.setdefault(threading.get_ident(), []).extend(keys)
                self._to_mark.extend(keys)
        if keys:
            self.settle()
        return taken

    def confirm(self) -> None:
        """Remove the replies that this thread took from the disk before this returns: they do not come again."""
        with self._changed:
            keys = self._handed.pop(threading.get_ident(), ())
            self._gone.extend(keys)
        if keys:
            self.settle()

    def give_back(self, taken: Sequence[KeptReply]) -> None:
        """Keep replies that this thread took last as if it had not."""
        with self._changed:
            if taken:
                self._handed.pop(threading.get_ident(), None)
                keys = {one.key for one in taken}
                self._gone = [key for key in self._gone if key not in keys]  # `confirm` was interrupted
            self._kept = dict(sorted([*((one.key, one) for one in taken), *self._kept.items()]))
            self._changed.notify_all()

    def kept(self, kind: type[K]) -> list[tuple[int, K]]:
        """Return the kept messages of one kind, and leave them."""
        with self._changed:
            return [(key, entry.message) for key, entry in self._kept.items() if isinstance(entry.message, kind)]

    def discard(self, key: int) -> bool:
        """Remove one, because it was taken elsewhere; tell whether it was there."""
        with self._changed:
            if self._kept.pop(key, None) is None:
                return False
            self._gone.append(key)
            self._actor.post(self._write)
            return True

    def between_writes(self, job: Callable[[], object]) -> None:
        """Do something on the writing thread, and wait for it. Raises BusyError if that closes or is overloaded."""
        self._actor.call(job, timeout_s=OVERLOADED_AFTER_S)

    def __len__(self) -> int:
        return len(self._kept)

    def settle(self) -> None:
        """Wait until everything put so far is kept, and can be taken."""
        self._actor.post(self._write)  # it runs also if the wait ends before
        with contextlib.suppress(BusyError):  # it ends, or the disk is too slow to wait for
            self._actor.call(lambda: None, timeout_s=STOP_WAITS_S)

    def _matching(self, wanted: Callable[[KeptReply], bool] | None) -> Iterator[int]:
        return (key for key, entry in self._kept.items() if wanted is None or wanted(entry))

    # --- the thread that writes --------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Write all messages that were put so far, then all marks and removals, also those that this caused."""
        with self._changed:
            incoming, self._incoming = self._incoming, []
        if incoming:
            self._store(incoming)
        with self._changed:
            gone, self._gone = self._gone, []
            marks, self._to_mark = self._to_mark, []
        if self._queue is None:
            return
        try:
            if marks:
                self._queue.mark_handed([key for key in marks if key < FIRST_MEMORY_KEY])
            if gone:
                self._queue.discard([key for key in gone if key < FIRST_MEMORY_KEY])
        except StorageError as error:
            self._failed(error)

    def _store(self, incoming: Sequence[_Incoming]) -> None:
        new: list[_Incoming] = []
        repeated: list[_Incoming] = []
        for one in incoming:
            (repeated if one.seen_as is not None and self._was_seen(one.seen_as) else new).append(one)
        documents = [stored(one.message) for one in new]
        keys, safe = self._numbered(documents, [one.seen_as for one in new])
        with self._changed:
            for one, key, document in zip(new, keys, documents, strict=True):
                if safe or not one.only_once:
                    self._kept[key] = kept(key, one.message, document)
            self._keep_bounded()
            self._changed.notify_all()
        if safe:
            for one, key in zip(new, keys, strict=True):
                one.stored(key, first=True)
        for one in repeated if safe else ():  # its first copy may be among those that the disk refused
            one.stored(0, first=False)

    def _numbered(self, documents: Sequence[Mapping[str, Any]], ids: Sequence[str | None]) -> tuple[list[int], bool]:
        """Write documents if there is a disk; return keys, of those that it refuses too, and whether they are safe."""
        safe = True
        if self._queue is not None and documents:
            try:
                return self._queue.add_many(documents, ids=ids), True
            except StorageError as error:
                self._failed(error)
                for seen in filter(None, ids):
                    self._seen.pop(seen, None)
                safe = False
        first = self._next_key
        self._next_key += len(documents)
        return list(range(first, self._next_key)), safe

    def _was_seen(self, seen_as: str) -> bool:
        """Tell whether a message came before, and remember it, so that two copies in one batch are noticed."""
        if seen_as in self._seen:
            return True
        try:
            if self._queue is not None and self._queue.seen(seen_as):
                return True
        except StorageError as error:
            self._failed(error)
        self._seen[seen_as] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return False

    def _failed(self, error: StorageError) -> None:
        self._tally.count("failures of the reply queue", str(error))

    def _keep_bounded(self) -> None:
        """Drop the oldest if there are too many, or they are too large; announcements go last."""
        over, size = len(self._kept) - self._limit, sum(one.size_bytes for one in self._kept.values())
        if over <= 0 and size <= MAX_KEPT_BYTES:
            return
        for key in sorted(self._kept, key=lambda key: _worth(self._kept[key])):
            if over <= 0 and size <= MAX_KEPT_BYTES:
                return
            size -= self._kept.pop(key).size_bytes
            over -= 1
            self._gone.append(key)
            self._tally.count("kept replies dropped: no caller takes them", f"more than {self._limit}, or too large")


def _worth(entry: KeptReply) -> int:
    return _LAST_TO_GO.index(entry.command) + 1 if entry.command in _LAST_TO_GO else 0
