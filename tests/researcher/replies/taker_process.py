"""A researcher in a process of its own that is killed while it keeps and takes replies.

Writes to a ledger, whose lines outlive a kill: ``kept N`` and ``took SEQUENCE REDELIVERED``.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from fedmon.common.wire.envelope import Reply
from fedmon.researcher.federation import Federation


def main(url: str, folder: str, ledger: str, mode: str) -> None:
    """Keep until killed; or take one by one until killed or nothing comes any more."""
    with (
        Path(ledger).open("a", buffering=1) as lines,
        Federation(url, researcher_id="alice", folder=folder) as federation,
    ):

        def note(text: str) -> None:
            lines.write(text + "\n")
            lines.flush()

        replies = federation.session.replies
        note(f"start {federation.instance}")
        if mode == "keep":
            kept = 0
            tick = threading.Event()
            while not tick.wait(0.01):
                if len(replies) != kept:
                    kept = len(replies)
                    note(f"kept {kept}")
        while taken := replies.take(limit=1, timeout_s=0.5):
            assert isinstance(taken[0].message, Reply)
            note(f"took {taken[0].message.sequence} {taken[0].redelivered}")
        note("end")


if __name__ == "__main__":
    main(*sys.argv[1:])
