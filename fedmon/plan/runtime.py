"""The folder with the files of fedmon that a plan's process needs."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from fedmon.common.errors import StorageError
from fedmon.common.files import write_whole

_PACKAGE = Path(__file__).parents[1]
_COMMON = ("__init__.py", "common/__init__.py", "common/errors.py", "common/training_plan.py")
_OUTSIDE = ("frame_reader.py", "runtime.py")
"""Files of this package that only nodes need."""
_COMPILE_TIMEOUT_S = 60.0


def lay_out(folder: Path, *, python: str | None = None) -> None:
    """Copy the files to ``folder``, so that main.py is ``folder/fedmon/plan/main.py``, readable by every user.

    Equal files stay, and others are replaced whole: a running job may be reading them. They are compiled for
    ``python``, the Python of plans, if possible, which saves each job some milliseconds. Raises StorageError.
    """
    plan = [f"plan/{path.name}" for path in sorted((_PACKAGE / "plan").glob("*.py")) if path.name not in _OUTSIDE]
    wanted = {folder / "fedmon" / name: _PACKAGE / name for name in (*_COMMON, *plan)}
    try:
        for path, source in wanted.items():
            if not path.is_file() or path.read_bytes() != source.read_bytes():
                write_whole(path, source.read_bytes(), mode=0o644)
        for path in (folder / "fedmon").rglob("*.py"):
            if path not in wanted:
                path.unlink()
        if python is not None:
            _compile(folder, python)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    except OSError as error:
        raise StorageError(f"cannot write the runtime of plans in {folder}: {error.strerror}") from error


def _compile(folder: Path, python: str) -> None:
    command = [python, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(folder)]
    # Without compiled files Python reads the sources each time.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            command,
            env={"LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMPILE_TIMEOUT_S,
            check=False,
        )
