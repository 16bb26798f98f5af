"""Resource types: registered by name, found in plug-in folders, and made into resources."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from fedmon.experiment.errors import InvalidTypeError, PluginError, ResourceNotCreatedError, UnknownTypeError, told
from fedmon.experiment.resource import Experiment, ResourceManager

logger = logging.getLogger(__name__)

SEARCH_PATH = "NEPI_SEARCH_PATH"
_OWN = ("fedmon.experiment.calls", "fedmon.experiment.types")


class ResourceFactory:
    """The resource types of this process, by name.

    An unknown type is looked up among those of a federation, then in the folders of ``NEPI_SEARCH_PATH``. A file there
    that cannot be used is logged, listed in `plugin_errors`, and named in the error of a missing type.
    """

    _resource_types: ClassVar[dict[str, type[ResourceManager]]] = {}
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _searched: ClassVar[dict[str, tuple[PluginError, ...]]] = {}

    @classmethod
    def register_type(cls, rclass: type[ResourceManager]) -> type[ResourceManager]:
        """Register a type under its ``_rtype``, in place of an earlier one of that name; return it.

        Raises InvalidTypeError for any other class, and for one without a name.
        """
        rtype = _checked(rclass).get_rtype()
        with cls._lock:
            cls._resource_types = {**cls._resource_types, rtype: rclass}
        return rclass

    @classmethod
    def resource_types(cls) -> dict[str, type[ResourceManager]]:
        """Return the types that are registered so far, by name."""
        return dict(cls._resource_types)

    @classmethod
    def get_resource_types(cls) -> dict[str, type[ResourceManager]]:
        """Return all types by name, with those of a federation and of the plug-in folders."""
        cls._load_own()
        cls.populate()
        return dict(cls._resource_types)

    @classmethod
    def get_resource_type(cls, rtype: str) -> type[ResourceManager]:
        """Return a type by name. Raises UnknownTypeError, a KeyError, with similar names."""
        for load in (cls._load_own, cls.populate):
            if rtype not in cls._resource_types:
                load()
        found = cls._resource_types.get(rtype)
        if found is None:
            hint = "".join(f"; {error}" for error in cls.plugin_errors())
            raise UnknownTypeError("no resource type", rtype, cls._resource_types, hint=hint)
        return found

    @classmethod
    def create(cls, rtype: str, ec: Experiment, guid: int) -> ResourceManager:
        """Make a resource. Raises UnknownTypeError, and ResourceNotCreatedError if the constructor raises."""
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
    def populate(cls) -> list[PluginError]:
        """Search the folders of ``NEPI_SEARCH_PATH`` that were not searched yet; return the errors.

        A registered type is not replaced.
        """
        found: list[PluginError] = []
        with cls._lock:  # a plug-in may ask for a type while it is loaded
            for part in filter(str.strip, os.environ.get(SEARCH_PATH, "").split(os.pathsep)):
                folder = str(Path(part).expanduser().absolute())
                if folder not in cls._searched:
                    cls._searched[folder] = ()
                    cls._searched[folder] = errors = tuple(cls._search(folder))
                    found += errors
        for error in found:
            logger.error("%s", error)
        return found

    @classmethod
    def plugin_errors(cls) -> list[PluginError]:
        """Return the errors of the folders searched so far."""
        return [error for errors in cls._searched.values() for error in errors]

    @classmethod
    def _load_own(cls) -> None:
        """Register our own types whose names are free, even if loaded before: tests replace the register."""
        for own in map(importlib.import_module, _OWN):
            for each in map(vars(own).get, own.__all__):
                if isinstance(each, type) and issubclass(each, ResourceManager):
                    with cls._lock:
                        cls._resource_types = {each.get_rtype(): each, **cls._resource_types}

    @classmethod
    def _search(cls, folder: str) -> Iterator[PluginError]:
        """Load the modules of a folder and of the packages in it, and register their types; yield the errors."""
        if not os.access(folder, os.R_OK | os.X_OK):
            yield PluginError(folder, f"this folder of {SEARCH_PATH} does not exist, or cannot be read")
        # A package for each folder: files of two folders may have the same name.
        package = ModuleType(f"fedmon_experiment_plugin_{hashlib.sha256(folder.encode()).hexdigest()[:12]}")
        sys.modules[package.__name__], package.__path__ = package, [folder]
        for _, name, is_package in pkgutil.walk_packages([folder], f"{package.__name__}.", onerror=lambda _: None):
            path = f"{folder}/{name.partition('.')[2].replace('.', '/')}{'/__init__' if is_package else ''}.py"
            try:
                for each in vars(importlib.import_module(name)).values():
                    if isinstance(each, type) and each.__module__ == name and "_rtype" in vars(each):
                        cls._add_plugin(each)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's file; the others are still of use
                reason = str(error) if isinstance(error, InvalidTypeError) else f"cannot be loaded: {told(error)}"
                yield PluginError(path, reason)

    @classmethod
    def _add_plugin(cls, rclass: type[Any]) -> None:
        rtype = _checked(rclass).get_rtype()
        taken = cls._resource_types.get(rtype, rclass)
        if taken is not rclass:  # else it is new, or has registered itself
            raise InvalidTypeError(f"the type {rtype} of {rclass.__qualname__} is taken by {taken.__qualname__}")
        cls._resource_types = {**cls._resource_types, rtype: rclass}


def populate_factory() -> None:
    """Search the plug-in folders, as NEPI calls it."""
    ResourceFactory.populate()


def _checked(rclass: object) -> type[ResourceManager]:
    if not (isinstance(rclass, type) and issubclass(rclass, ResourceManager)):
        raise InvalidTypeError(f"{rclass!r} is not a resource type: derive a class from ResourceManager")
    rtype = rclass.get_rtype()
    is_named = rtype and isinstance(rtype, str)
    if not is_named or (rtype == ResourceManager.get_rtype() and rclass is not ResourceManager):
        raise InvalidTypeError(f"{rclass.__qualname__} needs a name: set _rtype, which is {rtype!r}")
    rclass._complete()  # noqa: SLF001 - for classes without a decorator
    return rclass
