"""Replies that nobody has taken yet: kept in order, on disk for the main instance, until somebody takes them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from fedmon.common.wire.envelope import Reply
from fedmon.researcher.asking.match import READS, Waiting
from fedmon.researcher.replies.incoming import Incoming, OnKept, nothing
from fedmon.researcher.replies.kept import Entry, Keepable, KeptReply
from fedmon.researcher.replies.shelf import DurableQueue, Shelf
from fedmon.researcher.session.tally import Tally

TAKEN_SOON_S, READ_TAKEN_SOON_S = 0.02, 1.0
"""A caller that takes its replies within this time never makes the disk write; the second is for reads.

The replies to a read can be asked for again, and writing those of many nodes costs more than hearing them.
"""
MAX_KEPT = 10_000
MAX_KEPT_BYTES = 16 * 2**20
_LAST_TO_GO = ("job-outcome", "plan-decision")
"""What is announced once; the result of a job can be asked for again, a decision cannot."""
MAX_INCOMING = 20_000
STOP_WAITS_S = 5.0


class _Watched(msgspec.Struct, kw_only=True):
    """A request whose caller still waits: when to look, how many answers were stored, and as what."""

    due_at: float
    every_s: float
    stored: int = 0
    kept: dict[int, Entry] = {}


class Replies:
    """Keeps late and unknown replies, and answers that their caller does not take soon.

    Bounded: beyond 10,000, or 16 MiB, the oldest goes and is counted, outcomes of jobs and then decisions of owners
    last. Every method is safe from any thread; one thread of its own writes to the disk, many replies at once. Without
    a queue everything is kept in memory.
    """

    def __init__(self, queue: DurableQueue | None, *, tally: Tally, limit: int = MAX_KEPT) -> None:
        self._shelf, self._tally, self._limit = Shelf(queue, tally), tally, limit
        self._changed = threading.Condition()
        # By key, rising, so that the oldest is found first.
        self._kept, self._gone = self._shelf.recovered()
        self._incoming: list[Incoming] = []
        self._watched: dict[Waiting, _Watched] = {}
        self._to_mark: list[int] = []
        self._handed: dict[int, list[int]] = {}
        self._confirmations_wanted = self._confirmations_made = 0
        self.released = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="fedmon-replies", daemon=True)

    @property
    def durable(self) -> bool:
        """Tell whether what is kept outlives this process."""
        return self._shelf.durable

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    def release(self) -> None:
        """End every wait of `take`."""
        with self._changed:
            self.released = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Write what is to be written, and end; what was handed over counts as taken."""
        with self._changed:
            self._stopping = True
            for keys in self._handed.values():
                self._gone.extend(keys)
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(STOP_WAITS_S)
        self._shelf.close()

    # --- putting -----------------------------------------------------------------------------------------------------

    def keep(self, message: Keepable, *, only_once: bool = False, on_kept: OnKept = nothing) -> None:
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
        if self.durable and waiting not in self._watched:
            every_s = READ_TAKEN_SOON_S if isinstance(waiting.request, READS) else TAKEN_SOON_S
            with self._changed:
                due_at = time.monotonic() + every_s
                is_first = all(due_at < watched.due_at for watched in self._watched.values())
                self._watched[waiting] = _Watched(due_at=due_at, every_s=every_s)
                if is_first:
                    self._changed.notify_all()

    def ended(self, waiting: Waiting, answers: Sequence[Reply]) -> None:
        """Forget the answers of a request when its caller took them; else keep those that were not kept yet."""
        if waiting.taken and waiting not in self._watched:
            return
        with self._changed:
            watched = self._watched.pop(waiting, None) or _Watched(due_at=0.0, every_s=0.0)
            if waiting.taken:
                self._gone.extend(watched.kept)
            else:
                self._kept = dict(sorted((self._kept | watched.kept).items()))
                self._incoming.extend(Incoming(message=reply) for reply in answers[watched.stored :])
            self._changed.notify_all()

    # --- taking ------------------------------------------------------------------------------------------------------

    def take(
        self,
        commands: Collection[str] | None = None,
        *,
        wanted: Callable[[Entry], bool] | None = None,
        limit: int | None = None,
        timeout_s: float | None = 0.0,
    ) -> list[KeptReply]:
        """Take what is kept of these commands, or of all, oldest first; what is not asked for stays.

        ``wanted`` chooses further. Waits up to ``timeout_s``, null for ever, for the first. What a thread took leaves
        the disk when it takes again, at `confirm`, or at `stop`: after a crash in between, it comes again marked
        ``redelivered``.
        """
        with self._changed:
            self._gone.extend(self._handed.pop(threading.get_ident(), ()))
            self._changed.wait_for(
                lambda: self.released or next(self._matching(commands, wanted), None) is not None, timeout=timeout_s
            )
            keys = list(itertools.islice(self._matching(commands, wanted), limit))
            taken = [(key, self._kept.pop(key)) for key in keys]
            if keys and self.durable:
                self._handed[threading.get_ident()] = keys
                self._to_mark.extend(keys)
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._to_mark, timeout=STOP_WAITS_S)
            else:
                self._changed.notify_all()
        return [entry.kept(key) for key, entry in taken]

    def confirm(self) -> None:
        """Have what this thread took off the disk when this returns: it does not come again."""
        with self._changed:
            keys = self._handed.pop(threading.get_ident(), ())
            if not keys or self._stopping:
                self._gone.extend(keys)
                return
            self._gone.extend(keys)
            self._confirmations_wanted += 1
            mine = self._confirmations_wanted
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._confirmations_made >= mine, timeout=STOP_WAITS_S)

    def kept(self, command: str) -> list[tuple[int, Keepable]]:
        """Return what is kept of one command, and leave it."""
        with self._changed:
            found = [(key, self._kept[key]) for key in self._matching([command], None)]
        return [(key, entry.kept(key).message) for key, entry in found]

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

    def _matching(self, commands: Collection[str] | None, wanted: Callable[[Entry], bool] | None) -> Iterator[int]:
        for key, entry in self._kept.items():
            if (commands is None or entry.command in commands) and (wanted is None or wanted(entry)):
                yield key

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
                confirmations = self._confirmations_wanted
            self._change_shelf(marks, gone)
            self._confirm_up_to(confirmations)
            self._store(incoming, answers)
            with self._changed:
                if ending and not (self._incoming or self._gone):
                    return

    def _confirm_up_to(self, confirmations: int) -> None:
        if confirmations > self._confirmations_made:
            with self._changed:
                self._confirmations_made = confirmations
                self._changed.notify_all()

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
                watched.due_at = now + watched.every_s
        return found

    def _change_shelf(self, marks: list[int], gone: list[int]) -> None:
        if not (marks or gone):
            return
        self._shelf.change(handed=marks, gone=gone)
        with self._changed:
            del self._to_mark[: len(marks)]
            self._changed.notify_all()

    def _store(self, incoming: list[Incoming], answers: list[tuple[Waiting, Reply]]) -> None:
        new: list[Incoming] = []
        repeated: list[Incoming] = []
        for one in incoming:
            (repeated if one.only_once and self._shelf.was_seen(one.message.id) else new).append(one)
        messages = [one.message for one in new] + [reply for _, reply in answers]
        entries = [Entry.of(message) for message in messages]
        ids = [one.message.id if one.only_once else None for one in new] + [None] * len(answers)
        keys, safe = self._shelf.add(entries, ids)
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
                one.told(key, first=True)
        for one in repeated:
            one.told(0, first=False)

    def _settle_answer(self, waiting: Waiting, key: int, entry: Entry) -> None:
        watched = self._watched.get(waiting)
        if watched is not None:
            watched.kept[key] = entry
        elif waiting.taken:
            self._gone.append(key)
        else:
            self._kept[key] = entry

    def _keep_bounded(self) -> None:
        """Let the oldest go when there are too many, or they are too large; what is announced goes last."""
        over, size = len(self._kept) - self._limit, sum(len(entry.payload) for entry in self._kept.values())
        if over <= 0 and size <= MAX_KEPT_BYTES:
            return
        for key in sorted(self._kept, key=lambda key: _worth(self._kept[key])):
            if over <= 0 and size <= MAX_KEPT_BYTES:
                return
            size -= len(self._kept.pop(key).payload)
            over -= 1
            self._gone.append(key)
            self._tally.count("kept replies dropped: nobody takes them", f"more than {self._limit}, or too large")


def _worth(entry: Entry) -> int:
    return _LAST_TO_GO.index(entry.command) + 1 if entry.command in _LAST_TO_GO else 0
