"""The number of a node's boots, kept on disk."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from fedmon.common.clock import utc_now
from fedmon.common.errors import StorageError

logger = logging.getLogger(__name__)

MAX_DIGITS = 15


def read_boot(file: Path) -> int:
    """Return the number of the last boot; 0 before the first. A damaged file is set aside, and the clock stands in.

    Raises StorageError.
    """
    try:
        text = file.read_bytes()[:40].strip()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"cannot read {file}: {error.strerror}") from error
    if text.isdigit() and len(text) <= MAX_DIGITS:
        return int(text)
    aside = file.with_name(f"{file.name}.damaged-{utc_now():%Y%m%dT%H%M%SZ}")
    logger.error("%s is damaged: set aside as %s, counting boots from the clock", file, aside)
    with contextlib.suppress(OSError):
        file.rename(aside)
    return int(utc_now().timestamp())
