"""How a job's ending gets into its folder: whole or not at all, also on a full disk."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from fedmon.node.runs.folder import ENDING_BYTES, ENDING_ROOM, FILE_MODE
from fedmon.node.runs.order import ENDING, Ending

_LONGEST_REASON = 2000


def write_ending(folder: Path, ending: Ending) -> None:
    """Write it into the room that was taken for it, and rename that.

    Not waited for until it is on the disk: after a power cut there is no job to speak of, and a file without content
    is none. Raises OSError.
    """
    text = msgspec.json.encode(ending)
    if len(text) > ENDING_BYTES:
        # Escapes made it longer than its room: the problem's text is the least that is needed.
        text = msgspec.json.encode(
            msgspec.structs.replace(ending, problem=None, reason=ending.reason[:_LONGEST_REASON])
        )
    room = folder / ENDING_ROOM
    descriptor = os.open(room, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        view, offset = memoryview(text), 0
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written
        os.ftruncate(descriptor, len(text))
    finally:
        os.close(descriptor)
    room.replace(folder / ENDING)
