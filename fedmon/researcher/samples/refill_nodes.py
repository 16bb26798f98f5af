"""The nodes that one consumer follows, and their streams: at most 20,000 of them."""

from __future__ import annotations

from collections.abc import Iterator

from fedmon.common.ids import NodeId
from fedmon.researcher.samples.gaps import GapAccount
from fedmon.researcher.samples.refill_line import Line

MAX_LINES = 20_000


class FollowedNode:
    """What is known of one node: ``streams`` are those that were there, at boot ``begun_at``, when we began."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.newest_boot = -1
        self.begun_at = 0
        self.answered = False
        self.streams: frozenset[str] | None = None


class FollowedNodes:
    """Belongs to one thread, but for `pending`, which is safe from any."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, FollowedNode] = {}
        self._lines = 0

    @property
    def pending(self) -> int:
        """How many samples are missing."""
        accounts = (
            account
            for node in list(self._nodes.values())
            for line in list(node.lines.values())
            for account in list(line.accounts.values())
        )
        return sum(account.pending for account in accounts)

    def get(self, node_id: NodeId) -> FollowedNode | None:
        """Return a node, null when nothing was heard of it."""
        return self._nodes.get(node_id)

    def make(self, node_id: NodeId) -> FollowedNode:
        """Return a node, known or new."""
        return self._nodes.get(node_id) or self._nodes.setdefault(node_id, FollowedNode())

    def add(self, node_id: NodeId, stream: str, line: Line) -> list[Line]:
        """Begin to follow a stream; returns those that had to make room, of whom was known longest."""
        node, forgotten = self.make(node_id), []
        if self._lines >= MAX_LINES:
            oldest = next((one for one in self._nodes if one != node_id), None)
            if oldest is None:
                forgotten = [node.lines.pop(next(iter(node.lines)))]
            else:
                forgotten = list(self._nodes.pop(oldest).lines.values())
        node.lines[stream] = line
        self._lines += 1 - len(forgotten)
        return forgotten

    def line(self, node_id: str, stream: str) -> Line | None:
        """Return a stream, null when it is not followed."""
        node = self._nodes.get(NodeId(node_id))
        return None if node is None else node.lines.get(stream)

    def account(self, node_id: str, stream: str, boot: int) -> tuple[Line, GapAccount] | None:
        """Return a stream and the account of one of its boots, null when there is none."""
        line = self.line(node_id, stream)
        account = None if line is None else line.accounts.get(boot)
        return None if line is None or account is None else (line, account)

    def lines(self) -> Iterator[tuple[NodeId, Line]]:
        """Return every stream."""
        for node_id, node in self._nodes.items():
            for line in node.lines.values():
                yield node_id, line
