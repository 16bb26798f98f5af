"""The queue of replies that nobody has taken, as scripts of Fed-BioMed use it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from fedmon.common.store.queue import TasksQueueError
from fedmon.researcher.asking.match import CLOSED
from fedmon.researcher.replies.kept import Document, KeptReply
from fedmon.researcher.replies.replies import STOP_WAITS_S, Replies


class ReplyQueue:
    """The four methods of a `TasksQueue` over the replies that are kept. Safe from any thread.

    A reply that a thread got comes again, marked ``redelivered``, when the process dies before that thread called
    `task_done`, or `get` again.
    """

    def __init__(self, replies: Callable[[], Replies], told: Callable[[KeptReply], dict[str, Any]]) -> None:
        self._replies, self._told = replies, told

    def add(self, task: dict[str, Any]) -> None:
        """Put a message in, as it is; it is safe when this returns, on disk where this process keeps a queue there.

        Raises TasksQueueError for what is no JSON object.
        """
        if not isinstance(task, dict):
            raise TasksQueueError(f"a queue keeps JSON objects, not a {type(task).__name__}")
        try:
            document = Document.of(msgspec.json.decode(msgspec.json.encode(task), type=dict[str, Any]))
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise TasksQueueError(f"a message cannot be written as JSON: {error}") from None
        safe = threading.Event()
        self._replies().keep(document, on_kept=lambda _key, *, first: safe.set())  # noqa: ARG005 - named by the caller
        safe.wait(STOP_WAITS_S)

    def get(self, block: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - the historic signature
        """Take the oldest message, waiting for one unless ``block`` is false.

        Raises TasksQueueError when there is none, or when the connection is closed meanwhile.
        """
        replies = self._replies()
        taken = replies.take(limit=1, timeout_s=None if block else 0.0)
        if not taken:
            raise TasksQueueError(CLOSED if replies.released else "no reply is waiting")
        return self._told(taken[0])

    def task_done(self) -> None:
        """Tell that this thread is done with what it got; does nothing when it got nothing."""
        self._replies().confirm()

    def qsize(self) -> int:
        """Return how many messages wait."""
        return len(self._replies())
