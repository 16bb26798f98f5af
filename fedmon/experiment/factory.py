"""The resource types: registered by name, found in plug-in folders, and made into resources."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from fedmon.experiment.errors import (
    InvalidTypeError,
    PluginError,
    ResourceNotCreatedError,
    UnknownTypeError,
    told,
)
from fedmon.experiment.resource import Experiment, ResourceManager

logger = logging.getLogger(__name__)


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


_OWN = ("fedmon.experiment.calls", "fedmon.experiment.types")


class ResourceFactory:
    """Knows every resource type of this process by its name.

    When a type is asked for that nobody registered, those of a federation are loaded, and then the folders of
    ``NEPI_SEARCH_PATH`` are searched. A file there that cannot be used is logged, listed in `plugin_errors`, and named
    when a type is missing; the others are used.
    """

    _resource_types: ClassVar[dict[str, type[ResourceManager]]] = {}
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _searched: ClassVar[dict[str, tuple[PluginError, ...]]] = {}

    @classmethod
    def register_type(cls, rclass: type[ResourceManager]) -> type[ResourceManager]:
        """Register a type under its ``_rtype``, in place of one that had the name; return it.

        Raises InvalidTypeError for what is no resource type, or has no name of its own.
        """
        rtype = _checked(rclass).get_rtype()
        with cls._lock:
            before = cls._resource_types.get(rtype)
            cls._resource_types = {**cls._resource_types, rtype: rclass}
        if before is not None and before.__qualname__ != rclass.__qualname__:
            logger.warning("type %s is now %s, and no more %s", rtype, rclass.__qualname__, before.__qualname__)
        return rclass

    @classmethod
    def resource_types(cls) -> dict[str, type[ResourceManager]]:
        """Return the types that were registered so far, by name."""
        return dict(cls._resource_types)

    @classmethod
    def get_resource_types(cls) -> dict[str, type[ResourceManager]]:
        """Return all types, by name, those of a federation and of the plug-in folders included."""
        cls._load_own()
        cls.populate()
        return dict(cls._resource_types)

    @classmethod
    def get_resource_type(cls, rtype: str) -> type[ResourceManager]:
        """Return a type by name. Raises UnknownTypeError, a KeyError, which names what is like it."""
        if not isinstance(rtype, str):
            raise UnknownTypeError("no resource type", rtype, cls._resource_types)
        if rtype not in cls._resource_types:
            cls._load_own()
        if rtype not in cls._resource_types:
            cls.populate()
        found = cls._resource_types.get(rtype)
        if found is None:
            hint = "".join(f"; {error}" for error in cls.plugin_errors())
            raise UnknownTypeError("no resource type", rtype, cls._resource_types, hint=hint)
        return found

    @classmethod
    def create(cls, rtype: str, ec: Experiment, guid: int) -> ResourceManager:
        """Make a resource. Raises UnknownTypeError, and ResourceNotCreatedError where its constructor raises."""
        rclass = cls.get_resource_type(rtype)
        try:
            made = rclass(ec, guid)
        except Exception as error:
            raise ResourceNotCreatedError(f"resource {guid} of type {rtype} cannot be made: {told(error)}") from error
        if not hasattr(made, "_guid"):
            raise ResourceNotCreatedError(
                f"resource {guid} of type {rtype} cannot be made: {rclass.__qualname__}.__init__ must call "
                "super().__init__(ec, guid)"
            )
        return made

    @classmethod
    def register_own(cls, rclass: type[ResourceManager]) -> None:
        """Register a type, unless somebody has registered one of that name."""
        if rclass.get_rtype() not in cls._resource_types:
            cls.register_type(rclass)

    @classmethod
    def _load_own(cls) -> None:
        """Load the types of a federation; experiments without them need not."""
        for own in map(importlib.import_module, _OWN):
            for each in map(vars(own).get, own.__all__):
                # Also when they were loaded before: whoever replaced the register has them again.
                if isinstance(each, type) and issubclass(each, ResourceManager):
                    cls.register_own(each)

    @classmethod
    def populate(cls, environ: Mapping[str, str] | None = None) -> list[PluginError]:
        """Search the folders of ``NEPI_SEARCH_PATH`` that were not searched yet; return what could not be used there.

        A type that is registered already is not replaced.
        """
        found: list[PluginError] = []
        with cls._lock:  # a plug-in may ask for a type while it is being loaded
            for folder in folders_of((os.environ if environ is None else environ).get(SEARCH_PATH, "")):
                if folder not in cls._searched:
                    cls._searched = {**cls._searched, folder: ()}
                    errors = cls._search(folder)
                    cls._searched = {**cls._searched, folder: tuple(errors)}
                    found += errors
        return found

    @classmethod
    def plugin_errors(cls) -> list[PluginError]:
        """Return what could not be used in the folders that were searched."""
        return [error for errors in cls._searched.values() for error in errors]

    @classmethod
    def _search(cls, folder: str) -> list[PluginError]:
        classes, errors = classes_in(folder)
        for path, rclass in classes:
            try:
                rtype = _checked(rclass).get_rtype()
            except InvalidTypeError as error:
                errors.append(PluginError(path, str(error)))
                continue
            if cls._resource_types.get(rtype) is rclass:
                continue  # it registered itself
            if rtype in cls._resource_types:
                taken = cls._resource_types[rtype].__qualname__
                errors.append(PluginError(path, f"the type {rtype} of {rclass.__qualname__} is taken by {taken}"))
            else:
                cls._resource_types = {**cls._resource_types, rtype: rclass}
        for unusable in errors:
            logger.error("%s", unusable)
        return errors


def populate_factory() -> None:
    """Search the plug-in folders, as NEPI calls it."""
    ResourceFactory.populate()


def _checked(rclass: object) -> type[ResourceManager]:
    if not (isinstance(rclass, type) and issubclass(rclass, ResourceManager)):
        raise InvalidTypeError(f"{rclass!r} is no resource type: derive a class from ResourceManager")
    rtype = rclass.get_rtype()
    is_named = rtype and isinstance(rtype, str)
    if not is_named or (rtype == ResourceManager.get_rtype() and rclass is not ResourceManager):
        raise InvalidTypeError(f"{rclass.__qualname__} needs a name of its own: set _rtype, which is {rtype!r}")
    rclass._complete()  # noqa: SLF001 - for those without a decorator
    return rclass
