"""The frames in which a running plan speaks to what keeps it: their kinds, their bounds, and their first bytes.

A frame is one byte of kind, eight bytes of length, big-endian, and that many bytes of payload. The payload of a scalar,
a log line and a failure is a JSON object; that of a result is a parcel (see parcels.py), and its kind is the parcel's
format. A job first says that it begins, before anything of the plan runs; then it sends any number of scalars and log
lines, and last either one result or one failure. `frame_reader` reads them and trusts nothing.
"""

from __future__ import annotations

BEGUN = b"B"
"""``{}``: the sandbox and the interpreter work, and whatever goes wrong from here on is the plan's."""
SCALARS = b"S"
"""``{"values": {name: number or null}, "step": integer or null, "t": Unix seconds}``"""
LOG = b"L"
"""``{"level": text, "message": text, "t": Unix seconds}``"""
FAILURE = b"E"
"""``{"state": text, "reason": text, "type": text, "message": text or null, "traceback": text or null}``"""
RESULTS = {"json": b"j", "npz": b"n"}
"""The kind of a result by its format."""

HEADER_BYTES = 9
MAX_FRAME_BYTES = 524_288
"""The longest payload of a frame that is no result."""

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FAILED, INVALID_RESULT, OUTPUT_LIMIT = "failed", "invalid-result", "output-limit"
STATES = (FAILED, INVALID_RESULT, OUTPUT_LIMIT)
"""What a failure says of a job, in the words of JobState."""

MAX_VALUES = 100
"""Names in one report."""
MAX_NAME_CHARACTERS = 64
MAX_STEP = 2**53
MAX_LOG_CHARACTERS = 4096
MAX_REASON_CHARACTERS = 1024
MAX_TYPE_CHARACTERS = 256
MAX_MESSAGE_CHARACTERS = 4096
MAX_TRACEBACK_CHARACTERS = 16_384


def header(kind: bytes, length: int) -> bytes:
    """Return the first bytes of a frame whose payload has ``length`` bytes."""
    return kind + length.to_bytes(8, "big")


def is_scalar_name(name: object) -> bool:
    """Tell whether a scalar can be called so: a Python name of ASCII letters, digits and underscores, 64 at most."""
    return isinstance(name, str) and len(name) <= MAX_NAME_CHARACTERS and name.isascii() and name.isidentifier()
