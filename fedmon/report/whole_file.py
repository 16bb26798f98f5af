"""Files that appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` when the block ends well, and leaves nothing behind otherwise.

    The folder is made when it is not there. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Hidden, in the same folder so that it can be renamed, and of a name that no other writer has.
    staged = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
    try:
        with staged.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
