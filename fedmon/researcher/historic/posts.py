"""Requests that were sent without waiting, and the collecting of what came back from the queue of replies."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fedmon.common.clock import Deadline
from fedmon.common.errors import NotConnectedError
from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Request
from fedmon.researcher.asking.barrier import Train
from fedmon.researcher.asking.match import CLOSED, REMEMBERED_REQUESTS, RESTART_S, Waiting
from fedmon.researcher.asking.request import DISCOVERY_S, FIRST_RETRY_S
from fedmon.researcher.replies.kept import Entry, KeptReply
from fedmon.researcher.roster import Instant
from fedmon.researcher.session.session import Session

ERROR = "error"


class Post:
    """One request that was sent: who is to answer, and whose replies were taken from the queue."""

    def __init__(
        self,
        request: Request,
        payloads: Sequence[bytes],
        nodes: Sequence[NodeId] | None,
        *,
        command: str,
        repeated: Mapping[str, Any],
    ) -> None:
        self.id, self.request, self.command, self.repeated = request.id, request, command, repeated
        self.payloads, self.nodes = payloads, nodes
        self.owner = threading.current_thread()
        self.discovery = Deadline(DISCOVERY_S)
        self.taken: set[NodeId] = set()
        # A node of Fed-BioMed that is asked twice trains twice.
        self.may_repeat = not isinstance(request, Train)
        self.awaited = self.ended = False


class Posts:
    """Sends requests whose replies go to the queue, and collects them. Safe from any thread.

    Threads that send and collect never take each other's replies. A thread that sent nothing takes what is in the
    queue, but for what another waits for at that moment.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._posts: OrderedDict[str, Post] = OrderedDict()

    def send(
        self, request: Request, nodes: Sequence[NodeId] | None, *, command: str, repeated: Mapping[str, Any]
    ) -> bool:
        """Send a request; its replies have this ``command``, and say again what is ``repeated``. False when not sent.

        Raises InvalidMessageError for what does not fit into a message.
        """
        session = self._session
        post = Post(request, session.dialect.encode(request), nodes, command=command, repeated=repeated)
        with self._lock:
            self._posts[post.id] = post
            while len(self._posts) > REMEMBERED_REQUESTS:
                self._posts.popitem(last=False)
        # Ended before it is sent: whatever answers it is late, and goes to the queue.
        waiting = Waiting(request, kept=True)
        session.pending.open(waiting)
        session.pending.close(waiting, taken=False)
        sent = session.asker.send(request, post.payloads, nodes)
        post.ended = not sent
        return sent

    def repeated_by(self, request_id: str) -> Mapping[str, Any]:
        """Return what the replies to a request repeat from it, in the eyes of who sent it; empty when unknown."""
        post = self._posts.get(request_id)
        return {} if post is None else post.repeated

    def collect(
        self, commands: Collection[str], *, timeout_s: float, own_only: bool, while_replies: bool
    ) -> list[KeptReply]:
        """Take replies of these commands, or of all when there are none named, out of the queue for good.

        Ends as soon as every node expected has answered what was sent; where nothing was sent, as soon as there is
        something. Waits no longer than ``timeout_s``, which begins anew with each reply when ``while_replies``. Raises
        NotConnectedError when the federation is closed before anything came.
        """
        with self._awaited(commands) as posts:
            own = {post.id for post in posts if post.owner is threading.current_thread()}
            found: list[KeptReply] = []
            deadline, gap_s = Deadline(timeout_s), FIRST_RETRY_S
            retry = Deadline(gap_s)
            pause_s = 0.0
            while True:
                taken = self._take(commands, own, own_only=own_only, timeout_s=pause_s)
                found += taken
                if taken and while_replies:
                    deadline = Deadline(timeout_s)
                missing = self._missing(posts)
                if self._session.replies.released and not found:
                    raise NotConnectedError(CLOSED)
                if self._session.replies.released or deadline.passed() or not (missing or not (posts or found)):
                    break
                if retry.passed():
                    gap_s *= 2
                    retry = Deadline(gap_s)
                    self._ask_again(missing)
                discovering = [post.discovery.left_s() for post in posts if not post.discovery.passed()]
                # Who went offline meanwhile is not waited for.
                pause_s = min(deadline.left_s(), retry.left_s(), RESTART_S, *discovering)
            for post in posts:
                # Who waited in vain for its own does not wait for it again; who comes later is not asked any more.
                post.ended = post.id not in missing or (post.id in own and timeout_s > 0)
            return [kept for kept in found if not commands or kept.command in commands]

    @contextlib.contextmanager
    def _awaited(self, commands: Collection[str]) -> Iterator[list[Post]]:
        """Choose what is waited for: what this thread sent, or else what others sent; reserves the former."""
        me = threading.current_thread()
        with self._lock:
            open_ = [
                post for post in self._posts.values() if not post.ended and (not commands or post.command in commands)
            ]
            posts = [post for post in open_ if post.owner is me] or [post for post in open_ if not post.awaited]
            for post in posts:
                post.awaited = post.owner is me
        try:
            yield posts
        finally:
            for post in posts:
                if post.owner is me:
                    post.awaited = False

    def _take(
        self, commands: Collection[str], own: Collection[str], *, own_only: bool, timeout_s: float
    ) -> list[KeptReply]:
        def wanted(entry: Entry) -> bool:
            if own and own_only and entry.id and entry.id not in own:
                return False
            if self._is_anothers(entry.id, collecting=bool(own)):
                return False
            # A node that refuses has answered; its error goes with the replies that it stands for.
            return not commands or entry.command in commands or (entry.command == ERROR and entry.id in own)

        taken = self._session.replies.take(wanted=wanted, timeout_s=timeout_s)
        if taken:
            self._session.replies.confirm()
        for kept in taken:
            post = self._posts.get(kept.message.id)
            if post is not None:
                post.taken.add(NodeId(kept.message.node_id))
        return taken

    def _is_anothers(self, request_id: str, *, collecting: bool) -> bool:
        """Tell whether a reply is for another thread: one that waits, or will when we, too, collect our own."""
        post = self._posts.get(request_id)
        if post is None or post.owner is threading.current_thread():
            return False
        return post.awaited or (collecting and not post.ended and post.owner.is_alive())

    def _missing(self, posts: Collection[Post]) -> dict[str, set[NodeId]]:
        """Return who has not answered, by request; an empty set where somebody unknown may still turn up."""
        expected = self._session.roster.expected(Instant.now())
        missing: dict[str, set[NodeId]] = {}
        for post in posts:
            left = (expected if post.nodes is None else expected & set(post.nodes)) - post.taken
            if left or (not post.discovery.passed() and self._may_turn_up(post, expected)):
                missing[post.id] = left
        return missing

    def _may_turn_up(self, post: Post, expected: set[NodeId]) -> bool:
        if post.nodes is not None:
            return any(node not in expected and node not in post.taken for node in post.nodes)
        return not expected or not self._session.roster.settled.is_set()

    def _ask_again(self, missing: dict[str, set[NodeId]]) -> None:
        for request_id, nodes in missing.items():
            post = self._posts.get(request_id)
            if post is not None and nodes and post.may_repeat:
                self._session.asker.send_again(post.request, post.payloads, nodes, all_asked=post.nodes is None)
