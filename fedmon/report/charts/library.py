"""matplotlib with its default settings, in a process that leaves no trace of it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedmon.common.errors import StorageError

_FOLDER = "MPLCONFIGDIR"
_SETTINGS = threading.RLock()
_NOT_OF_A_DRAWING = ("backend", "interactive", "toolbar", "webagg.", "tk.", "keymap.", "macosx.", "docstring.")


@contextlib.contextmanager
def plain_settings(**more: Any) -> Iterator[None]:
    """Draw with matplotlib's default settings and ``more``, not the user's file; they are put back at once.

    A dot in the name of a setting is written as two underscores. Safe from any thread of ours.
    """
    import matplotlib as mpl

    # A user's TeX, fonts or colours would change what we say in a drawing, or keep it from being made.
    plain: Mapping[Any, Any] = mpl.rcParamsDefault
    present: Mapping[Any, Any] = mpl.rcParams
    changed: Any = {
        name: value
        for name, value in plain.items()
        if not name.startswith(_NOT_OF_A_DRAWING) and present.get(name) != value
    }
    changed |= {name.replace("__", "."): value for name, value in more.items()}
    if not changed:
        yield
        return
    with _SETTINGS, mpl.rc_context(changed):
        yield


@contextlib.contextmanager
def own_process(near: Path) -> Iterator[None]:
    """For a process that is ours alone: matplotlib finds a folder to write to, and leaves none behind.

    If its user's folders cannot be used that is one in ``near``, or in the nearest existing folder above it, which
    is gone afterwards. Raises StorageError.
    """
    # Otherwise somebody has chosen already, and may go on with it.
    if "matplotlib" in sys.modules or _is_usable():
        with _quiet():
            yield
        return
    place = next(folder for folder in (near, *near.absolute().parents) if folder.is_dir())
    try:
        # matplotlib's own choice would stay behind: our processes end without what Python does at its exit.
        folder = tempfile.mkdtemp(prefix=".fedmon-", dir=place)
    except OSError as error:
        raise StorageError(f"cannot write to {near}: {error.strerror or error}") from error
    before = os.environ.get(_FOLDER)
    os.environ[_FOLDER] = folder
    try:
        with _quiet():
            yield
    finally:
        if before is None:
            del os.environ[_FOLDER]
        else:
            os.environ[_FOLDER] = before
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide matplotlib's messages about its user's settings, which do not matter here."""
    logger = logging.getLogger("matplotlib")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _is_usable() -> bool:
    """Tell whether matplotlib can write to its default folders. Source: matplotlib.get_configdir, get_cachedir."""
    given = os.environ.get(_FOLDER)
    try:
        folders = [Path(given)] if given else [_base("CONFIG") / "matplotlib", _base("CACHE") / "matplotlib"]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:  # a full disk or a quota is told by a write alone
                file.write(b"\0" * 4096)
    except (OSError, RuntimeError):  # such as: this user has no home
        return False
    return True


def _base(kind: str) -> Path:
    given = os.environ.get(f"XDG_{kind}_HOME")
    return Path(given) if given else Path.home() / f".{kind.lower()}"
