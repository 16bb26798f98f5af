"""matplotlib with its default settings, in a process that leaves no trace of it."""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import StorageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FOLDER = "MPLCONFIGDIR"
_SETTINGS = threading.RLock()
_NOT_OF_A_DRAWING = ("backend", "interactive", "toolbar", "webagg.", "tk.", "keymap.", "macosx.", "docstring.")


def saved(made: Callable[[], Figure], kind: str, *, name: str, title: str = "", dpi: float) -> bytes:
    """Return the figure that ``made`` returns as png, svg or pdf, the same each time; safe from any thread of ours.

    It is drawn with matplotlib's default settings, not those of the user's file.
    """
    import matplotlib as mpl

    # A user's TeX, fonts or colours would change what we say in a drawing, or keep it from being made.
    plain: Mapping[Any, Any] = mpl.rcParamsDefault
    settings: Any = {name: value for name, value in plain.items() if not name.startswith(_NOT_OF_A_DRAWING)}
    # How text is written, and ids that do not change, are global settings of matplotlib.
    settings |= {"svg.fonttype": "none", "svg.hashsalt": name}
    into = io.BytesIO()
    metadata: Mapping[str, Mapping[str, Any]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Title": title},
    }
    with _SETTINGS, mpl.rc_context(settings):
        made().savefig(into, format=kind, dpi=dpi, metadata=metadata[kind])
    return into.getvalue()


@contextlib.contextmanager
def own_process(near: Path) -> Iterator[None]:
    """For a process that is ours alone: matplotlib leaves no folder behind, and prints nothing.

    If it cannot use its user's folders it makes a temporary one, in ``near`` if that can be written. Raises
    StorageError.
    """
    logger = logging.getLogger("matplotlib")
    level, place, given = logger.level, tempfile.tempdir, os.environ.get(_FOLDER)
    logger.setLevel(logging.CRITICAL)
    tempfile.tempdir = str(near.absolute()) if os.access(near, os.W_OK) else place
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write to {near}: {error.strerror or error}") from error
    finally:
        logger.setLevel(level)
        tempfile.tempdir = place
        made = os.environ.get(_FOLDER, "")
        if made != (given or ""):
            # matplotlib removes it at Python's exit, which some of our processes never reach.
            atexit.unregister(shutil.rmtree)
            shutil.rmtree(made, ignore_errors=True)
            os.environ.pop(_FOLDER)
