"""A scripted node that keeps its samples: they can be published or withheld, asked for again, forgotten and refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bench.echo_nodes import VERSION, Message
from tests.support.echo_node import EchoNode

CPU = "host_cpu_busy_ratio"
Key = tuple[int, str]


class RecordingNode(EchoNode):
    """Samples are made by `sample`, with their number as value and ``t`` 1 s apart; boots of samples are ``process``.

    ``page`` is how many samples a page holds. ``on_resend`` may answer a request for samples in its own way. With
    ``knows_since`` false it is an older node, which overlooks ``since_t``.
    """

    knows_since = True

    def __init__(self, port: int, node_id: str, *, page: int = 10, **options: Any) -> None:
        super().__init__(port, node_id, **options)
        self.process, self.page = 1, page
        self.kept: dict[Key, dict[int, float]] = {}
        self.next_seq: dict[Key, int] = {}
        self.on_resend: Callable[[Message], Any] | None = None
        self.answer = self._answer
        self._lock = threading.Lock()

    @property
    def resends(self) -> list[Message]:
        """The requests for samples that arrived."""
        return [request for request in self.sent("monitor") if request["action"] == "resend"]

    @property
    def leased(self) -> bool:
        """Whether somebody holds or held a lease."""
        return any(request["action"] == "start" for request in self.sent("monitor"))

    def sample(self, count: int = 1, *, stream: str = "host", live: bool = True, width: int = 1, qos: int = 1) -> None:
        """Measure ``count`` samples of ``width`` series; with ``live`` they are published, as one batch."""
        key = self.process, stream
        with self._lock:
            first = self.next_seq.get(key, 0)
            self.next_seq[key] = first + count
            kept = self.kept.setdefault(key, {})
            begun = time.time() - 1000 + 100 * self.process
            kept.update({seq: begun + seq for seq in range(first, first + count)})
        if live:
            batch = _columns(kept, range(first, first + count), width)
            head = {"command": "sample", "protocol_version": VERSION, "node_id": self.node_id}
            message = head | {"boot": key[0], "stream": stream} | batch
            self.publish(f"general/monitoring/{self.node_id}", message, qos=qos)

    def forget(self, below: int) -> None:
        """Lose the oldest samples, as a bounded recording does."""
        kept = self.kept[self.process, "host"]
        for seq in [seq for seq in kept if seq < below]:
            del kept[seq]

    def come_up(self) -> None:
        """Say to be online under a new boot of the connection, so that leases are asked for anew."""
        self.boot += 1
        self.say("online")

    def restart(self) -> None:
        """Begin a new process: samples are numbered anew."""
        self.process += 1
        self.come_up()

    def _answer(self, request: Message) -> Any:
        if request["command"] != "monitor":
            return self.honest(request)
        if request["action"] != "resend":
            return (self.honest(request) or {}) | {"extents": self._extents()}
        return self.samples_reply(request) if self.on_resend is None else self.on_resend(request)

    def samples_reply(self, request: Message) -> Message:
        """Return one page of what is kept."""
        with self._lock:
            kept = dict(self.kept.get((request["boot"], request["stream"]), {}))
        asked = [seq for seq in sorted(kept) if request["first_seq"] <= seq <= request["last_seq"]]
        since_t = request.get("since_t") if self.knows_since else None
        if since_t is not None:
            asked = asked[next((at for at, seq in enumerate(asked) if kept[seq] >= since_t), len(asked)) :]
        page, rest = asked[: self.page], asked[self.page :]
        runs: list[list[int]] = []
        for seq in page:
            if runs and runs[-1][-1] == seq - 1:
                runs[-1].append(seq)
            else:
                runs.append([seq])
        return self.reply(
            request,
            "samples",
            success=True,
            boot=request["boot"],
            stream=request["stream"],
            batches=[_columns(kept, run, 1) for run in runs],
            next_seq=rest[0] if rest else None,
            oldest_seq=min(kept, default=None),
            last_seq=max(kept, default=None),
        )

    def _extents(self) -> list[Message]:
        with self._lock:
            return [
                {
                    "boot": boot,
                    "stream": stream,
                    "oldest_seq": min(kept),
                    "last_seq": max(kept),
                    "oldest_t": kept[min(kept)],
                    "last_t": kept[max(kept)],
                }
                for (boot, stream), kept in sorted(self.kept.items(), reverse=True)
                if kept
            ]


def _columns(kept: dict[int, float], seqs: Any, width: int) -> Message:
    times = [kept[seq] for seq in seqs]
    columns = {CPU: [float(seq) for seq in seqs]}
    columns |= {f"wide_{number}": [1.25] * len(times) for number in range(width - 1)}
    return {"seq": next(iter(seqs)), "t": times, "mono": times, "m": columns}
