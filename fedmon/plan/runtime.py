"""The folder with the few files of fedmon that a plan's process needs."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path

from fedmon.common.errors import StorageError

_PACKAGE = Path(__file__).parents[1]
_FILES = (
    "__init__.py",
    "common/__init__.py",
    "common/errors.py",
    "common/training_plan.py",
)
_COMPILE_TIMEOUT_S = 60.0


def lay_out(folder: Path, *, python: str | None = None) -> None:
    """Copy the files to ``folder``, so that main.py is ``folder/fedmon/plan/main.py``, readable by every user.

    Files that are the same already stay, and others are replaced whole: a job that goes on may be reading them. With
    ``python``, the one that plans run on, they are also compiled for it, which saves each job some milliseconds; when
    that cannot be done nothing else is lost. Raises StorageError.
    """
    plan = sorted(path.relative_to(_PACKAGE).as_posix() for path in (_PACKAGE / "plan").glob("*.py"))
    try:
        wanted = {folder / "fedmon" / name: (_PACKAGE / name).read_bytes() for name in (*_FILES, *plan)}
        for path, content in wanted.items():
            _make_folder(path.parent)
            if not path.is_file() or path.read_bytes() != content:
                _replace(path, content)
        for path in (folder / "fedmon").rglob("*.py"):
            if path not in wanted:
                path.unlink()
        folder.chmod(0o755)
    except OSError as error:
        raise StorageError(f"cannot lay out what plans run with in {folder}: {error.strerror}") from error
    if python is not None:
        _compile(folder, python)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)


def _replace(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _compile(folder: Path, python: str) -> None:
    command = [python, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(folder)]
    # A Python that cannot do it reads the sources instead, each time anew.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            command,
            env={"LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMPILE_TIMEOUT_S,
            check=False,
        )
        for path in folder.rglob("__pycache__"):
            for each in (path, *path.iterdir()):
                each.chmod(0o755 if each == path else 0o644)
