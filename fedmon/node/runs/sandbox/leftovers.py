"""What a job wrote outside a sandbox of its own, taken away when it is over, however it lies there."""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

_MODE = 0o700


def remove_whole(folder: Path) -> None:
    """Remove a folder that a plan had for itself; what cannot be removed is logged and stays.

    Folders may be nested deeper than a path can name or a program can recurse, and be closed to their owner: so each
    is moved up to the top, opened, and emptied there. Nothing of the plan may run any more.
    """
    count = 0
    waiting = [folder]
    try:
        while waiting:
            here = waiting.pop()
            here.chmod(_MODE)
            with os.scandir(here) as entries:
                found = list(entries)
            for entry in found:
                if not entry.is_dir(follow_symlinks=False):
                    Path(entry.path).unlink()
                    continue
                Path(entry.path).chmod(_MODE)  # to be moved, it has to be writable itself
                moved = folder.with_name(f"{folder.name}-{count}")
                count += 1
                Path(entry.path).rename(moved)
                waiting.append(moved)
            here.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("what a job left in %s cannot be removed: %s", folder, error.strerror)
