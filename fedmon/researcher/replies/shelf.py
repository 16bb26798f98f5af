"""Where kept messages stand: in a queue on disk where there is one, else in memory alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from fedmon.common.errors import InvalidMessageError, StorageError
from fedmon.researcher.replies.kept import Entry
from fedmon.researcher.session.tally import Tally

MAX_SEEN = 10_000
FIRST_MEMORY_KEY = 2**62
"""Keys from here on are of messages that the disk refused; no row of a queue has such a number."""


class DurableQueue(Protocol):
    """A queue on disk, as a shelf needs it; used by one thread."""

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


class Shelf:
    """Numbers messages, writes them, and knows which came before; a failing disk is counted and stops nothing.

    Belongs to one thread, but for making and closing it.
    """

    def __init__(self, queue: DurableQueue | None, tally: Tally) -> None:
        self._queue, self._tally = queue, tally
        self._seen: dict[str, None] = {}
        self._next_key = FIRST_MEMORY_KEY

    @property
    def durable(self) -> bool:
        """Tell whether what stands here outlives this process."""
        return self._queue is not None

    def recovered(self) -> tuple[dict[int, Entry], list[int]]:
        """Return what an earlier process left, by key, and the keys of what cannot be read."""
        entries: dict[int, Entry] = {}
        unreadable: list[int] = []
        for key, document, handed in self._queue.pending() if self._queue is not None else ():
            try:
                entries[key] = Entry.recovered(document, handed=handed)
            except InvalidMessageError as error:
                self._tally.count("unreadable entries of the reply queue", error.reason)
                unreadable.append(key)
        return entries, unreadable

    def add(self, entries: Sequence[Entry], ids: Sequence[str | None]) -> tuple[list[int], bool]:
        """Write entries and return their keys, and whether they are safe; those that the disk refuses get keys too."""
        safe = True
        if self._queue is not None and entries:
            try:
                return self._queue.add_many([entry.stored() for entry in entries], ids=ids), True
            except StorageError as error:
                self._failed(error)
                for seen in ids:
                    if seen is not None:
                        self._seen.pop(seen, None)
                safe = False
        first = self._next_key
        self._next_key += len(entries)
        return list(range(first, self._next_key)), safe

    def change(self, *, handed: Collection[int], gone: Collection[int]) -> None:
        """Note what is being handed over, and take out what is gone."""
        if self._queue is None:
            return
        try:
            if handed:
                self._queue.mark_handed([key for key in handed if key < FIRST_MEMORY_KEY])
            if gone:
                self._queue.discard([key for key in gone if key < FIRST_MEMORY_KEY])
        except StorageError as error:
            self._failed(error)

    def was_seen(self, message_id: str) -> bool:
        """Tell whether a message came before, and remember it; here, so that two copies in one batch are noticed."""
        if message_id in self._seen:
            return True
        try:
            if self._queue is not None and self._queue.seen(message_id):
                return True
        except StorageError as error:
            self._failed(error)
        self._seen[message_id] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return False

    def close(self) -> None:
        """Give the folder back."""
        if self._queue is not None:
            self._queue.close()

    def _failed(self, error: StorageError) -> None:
        self._tally.count("failures of the reply queue", str(error))
