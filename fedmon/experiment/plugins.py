"""Plug-in folders: every Python file and package in them is loaded, and the resource types in it are found."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from fedmon.experiment.errors import PluginError
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.verbs import told

SEARCH_PATH = "NEPI_SEARCH_PATH"
_PREFIX = "fedmon_experiment_plugin"

Found = tuple[str, type[ResourceManager]]


def folders_of(search_path: str) -> list[str]:
    """Return the folders that a search path names, absolute and each once; an empty part names none."""
    parts = (part for part in search_path.split(os.pathsep) if part.strip())
    return list(dict.fromkeys(str(Path(part).expanduser().absolute()) for part in parts))


def classes_in(folder: str) -> tuple[list[Found], list[PluginError]]:
    """Load a folder; return the types that its files define, with the file of each, and what could not be loaded."""
    found: list[Found] = []
    errors: list[PluginError] = []
    try:
        files = sorted(_files(Path(folder)))
    except OSError as error:
        return [], [PluginError(folder, f"this folder of {SEARCH_PATH} cannot be read: {error.strerror}")]
    for name, path in files:
        for module_name, place in _with_parts(name, path):
            module = _loaded(module_name, place, errors)
            if module is not None:
                found += ((str(place), each) for each in _types_of(module))
    return found, errors


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    # Two folders may hold files of the same name; neither may take the name of a module that others import.
    prefix = f"{_PREFIX}_{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    for path in folder.iterdir():
        inside = path / "__init__.py" if path.is_dir() else path
        stem = path.stem if path.suffix == ".py" else path.name
        if inside.suffix == ".py" and inside.is_file() and stem.isidentifier() and stem != "__init__":
            yield f"{prefix}_{stem}", inside


def _with_parts(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    yield name, path
    if path.name != "__init__.py" or name not in sys.modules:
        return
    parts = pkgutil.walk_packages([str(path.parent)], f"{name}.", onerror=lambda _: None)
    for part in parts:
        inside = path.parent.joinpath(*part.name.removeprefix(f"{name}.").split("."))
        yield part.name, inside / "__init__.py" if part.ispkg else inside.with_suffix(".py")


def _loaded(name: str, path: Path, errors: list[PluginError]) -> ModuleType | None:
    try:
        if "." in name:
            return importlib.import_module(name)
        return _from_file(name, path)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's file; the others are still of use
        sys.modules.pop(name, None)
        errors.append(PluginError(str(path), f"cannot be loaded: {told(error)}"))
        return None


def _from_file(name: str, path: Path) -> ModuleType:
    places = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _types_of(module: ModuleType) -> Iterator[type[ResourceManager]]:
    for each in vars(module).values():
        is_own = isinstance(each, type) and each.__module__ == module.__name__
        if is_own and issubclass(each, ResourceManager) and "_rtype" in vars(each):
            yield each
