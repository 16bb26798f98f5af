"""How fast replies go into the queue on disk, and come out again.

``python -m bench.replies``: ``queue-put`` counts replies from the network's thread to the disk, against the 4,200 a
second of the reference; ``queue-drain-5000`` takes 5,000, against half a second.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path

from bench.echo_nodes import answer_to
from bench.line import print_line
from fedmon.broker.engine import choose_engine
from fedmon.researcher.federation import Federation

DRAINED = 5_000
REFERENCE_PUTS = 4_200.0
BUDGET_DRAIN_S = 0.5


def replies(count: int) -> list[bytes]:
    """Return pongs to questions that an earlier process asked."""
    request = {"command": "ping", "researcher_id": "bench", "session": "earlier"}
    made = [answer_to("echo", 1, request | {"id": f"id-{number}", "sequence": number}) for number in range(count)]
    return [json.dumps(reply).encode() for reply in made]


def measure(turns: int) -> None:
    """Put and drain several times; the medians count."""
    puts, drains = [], []
    payloads = replies(DRAINED)
    tick = threading.Event()
    with choose_engine("mosquitto")() as broker:
        for _ in range(turns):
            with (
                tempfile.TemporaryDirectory() as folder,
                Federation(broker.url, researcher_id="bench", folder=Path(folder)) as federation,
            ):
                federation.nodes()
                session = federation.session
                start = time.perf_counter()
                for payload in payloads:
                    session.inbox.put("general/researcher/bench/main/echo", payload)
                while len(session.replies) < DRAINED:
                    tick.wait(0.001)
                puts.append(DRAINED / (time.perf_counter() - start))
                start = time.perf_counter()
                taken = session.replies.take()
                drains.append(time.perf_counter() - start)
                assert [one.message.id for one in taken] == [f"id-{number}" for number in range(DRAINED)]
    middle = turns // 2
    print_line("replies", "queue-put", ours=sorted(puts)[middle], peer=REFERENCE_PUTS, unit="replies/s")
    print_line("replies", f"queue-drain-{DRAINED}", ours=sorted(drains)[middle], peer=BUDGET_DRAIN_S, unit="s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    measure(parser.parse_args().turns)


if __name__ == "__main__":
    main()
