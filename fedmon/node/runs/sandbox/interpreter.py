"""The files that a Python needs to run, by its own answer: a plan sees these and no others."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedmon.common.errors import InvalidInputError
from fedmon.node.runs.folder import Interpreter

_TIMEOUT_S = 20.0

# These modules of the standard library load shared libraries of the system.
_QUESTION = """
import json, os, site, sys, sysconfig
for name in ("bz2", "ctypes", "hashlib", "lzma", "sqlite3", "ssl", "zlib"):
    try: __import__(name)
    except ImportError: pass
places = sysconfig.get_paths()
with open("/proc/self/maps", "rb") as file:
    mapped = {os.fsdecode(line.split(None, 5)[5].strip()) for line in file if b".so" in line and b" /" in line}
print(json.dumps({
    "executable": sys.executable, "prefix": sys.prefix,
    "base_prefix": sys.base_prefix, "path": sys.path, "mapped": sorted(mapped),
    "library": [places["stdlib"], places["platstdlib"], sysconfig.get_config_var("DESTSHARED") or places["stdlib"]],
    "packages": [places["purelib"], places["platlib"], *site.getsitepackages()],
}))
"""


def look_at(python: Path | None) -> Interpreter:
    """Ask a Python, by default our own, for the files that it needs.

    Of its search path only the standard library and the folders of installed packages count: a ``.pth`` file may add
    anything, such as the folder in which fedmon is developed.
    Raises InvalidInputError if it is no Python that runs here, or if every user of this machine could replace it: it
    answers, and its modules are compiled, outside of any sandbox.
    """
    program = str(Path(python or sys.executable).absolute())
    if python is not None:  # our own runs already
        _refuse_open_to_all([program])
    try:
        done = subprocess.run(
            [program, "-I", "-c", _QUESTION],
            env={"LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        why = type(error).__name__ if isinstance(error, subprocess.SubprocessError) else error
        raise InvalidInputError(f"[runs] python = {program} does not answer as a Python does: {why}") from error
    executable = str(told["executable"])
    roots = [os.path.realpath(each) for each in (*told["library"], *told["packages"])]
    path = [each for each in told["path"] if Path(each).exists() and _is_below(os.path.realpath(each), roots)]
    if python is not None:
        _refuse_open_to_all([executable, *path])
    return Interpreter(
        executable=executable,
        needs=_needs(executable, path, told["mapped"], [told["prefix"], told["base_prefix"]]),
        path=path,
    )


def _refuse_open_to_all(paths: Iterable[str]) -> None:
    for path in paths:
        for each in {place for step in (path, os.path.realpath(path)) for place in (Path(step), *Path(step).parents)}:
            try:
                mode = each.stat().st_mode
            except OSError:
                continue
            # In a sticky folder users can make files, but not replace those of others; stat(2).
            if mode & stat.S_IWOTH and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
                raise InvalidInputError(
                    f"every user of this machine may change {each}, and so the Python that plans run on: take that "
                    "right away (chmod o-w), or name another in [runs] python"
                )


def _needs(executable: str, path: Iterable[str], mapped: Iterable[str], prefixes: Iterable[str]) -> list[str]:
    """Return links, files and folders, none of them inside another."""
    own = [os.path.realpath(each) for each in prefixes]
    found = [*_walked(executable), *(step for each in path for step in _walked(each))]
    for loader in Path("/").glob("lib*/ld-*.so*"):  # by the names that programs start with; elsewhere it is mapped
        if loader.exists():
            found += _walked(str(loader))
    for prefix in dict.fromkeys([*own, str(Path(executable).parent.parent)]):
        settings = Path(prefix, "pyvenv.cfg")
        if settings.exists():
            found += _walked(str(settings))
    for library in filter(os.path.exists, map(os.path.realpath, mapped)):
        folder = str(Path(library).parent)
        # Packages need other libraries of the same folder too; outside of folders of libraries just this file is given.
        found += _walked(folder if _is_below(folder, [*_SYSTEM, *(f"{each}/lib" for each in own)]) else library)
    # Debian chooses between builds of one library, such as BLAS, by links in /etc/alternatives.
    found += [each for each in ("/etc/alternatives", "/etc/ld.so.cache") if Path(each).exists()]
    folders = [each for each in found if Path(each).is_dir() and not Path(each).is_symlink()]
    return sorted({each for each in found if not _is_below(each, set(folders) - {each})})


_SYSTEM = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/nix/store", "/opt")


def _walked(path: str) -> Iterator[str]:
    """Return the links on the way to an existing path, and the file or folder at its end."""
    here, ahead = Path("/"), list(reversed(Path(path).parts))
    while ahead:
        part = ahead.pop()
        # As the kernel does it: above the target of a link, not above the link.
        here = here.parent if part == ".." else here / part
        if part != ".." and here.is_symlink():
            yield str(here)
            ahead += reversed(here.readlink().parts)
            here = here.parent
    yield str(here)


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(root + "/") for root in roots)
