"""A script in the historic style, in a process of its own that is killed while it takes replies.

Writes to a ledger, whose lines outlive a kill: ``start INSTANCE``, ``waiting N`` and ``took SEQUENCE REDELIVERED``.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from fedmon import Requests
from fedmon.common.store.queue import TasksQueueError


def main(ledger: str, mode: str) -> None:
    """Wait until killed; or take one by one until killed; or take all at once."""
    with Path(ledger).open("a", buffering=1) as lines, Requests() as requests:

        def note(text: str) -> None:
            lines.write(text + "\n")
            lines.flush()

        note(f"start {requests.messaging.federation.instance}")
        tick = threading.Event()
        while mode == "wait":
            note(f"waiting {requests.queue.qsize()}")
            tick.wait(0.05)
        while mode == "take":
            try:
                message = requests.queue.get(block=False)
            except TasksQueueError:  # nothing is left
                tick.wait(0.05)
                continue
            note(f"took {message['sequence']} {message.get('redelivered', False)}")
            requests.queue.task_done()
        for message in requests.get_messages():
            note(f"took {message['sequence']} {message.get('redelivered', False)}")
        note("end")


if __name__ == "__main__":
    main(*sys.argv[1:])
