"""A process that puts and takes for ever and says on its output what it was promised; killed by its test.

Lines: ``put N`` after add_many returned, ``got N R`` after mark_handed returned (R 1 if it was marked before).
Run as a module with a folder and the first number to put.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from fedmon.common.store.queue import TasksQueue


def say(line: str) -> None:
    """Write one line in one call: whole or not at all, also when we are killed."""
    os.write(1, f"{line}\n".encode())


def take_for_ever(queue: TasksQueue) -> None:
    """Take documents one by one."""
    while True:
        for key, document, handed in queue.pending():
            queue.mark_handed([key])
            say(f"got {document['n']} {int(handed)}")
            queue.discard([key])


def main(folder: Path, first: int) -> None:
    """Put on this thread, take on another."""
    queue = TasksQueue(folder)
    threading.Thread(target=take_for_ever, args=(queue,), daemon=True).start()
    number = first
    while True:
        if len(queue.pending()) < 50:
            say(f"putting {number}")
            queue.add_many([{"n": number, "text": "x" * 200}])
            say(f"put {number}")
            number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
