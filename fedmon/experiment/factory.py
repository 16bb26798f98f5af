"""Resource types: registered by name, found in plug-in folders, and made into resources."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import pkgutil
import sys
import threading
from types import ModuleType
from typing import ClassVar

from fedmon.experiment.errors import InvalidTypeError, ResourceNotCreatedError, UnknownTypeError, told
from fedmon.experiment.resource import Experiment, ResourceManager

logger = logging.getLogger(__name__)

_OWN = ("fedmon.experiment.calls", "fedmon.experiment.types")


class ResourceFactory:
    """The resource types of this process, by name.

    An unknown type is looked up among those of a federation, then in the folders of ``NEPI_SEARCH_PATH``.
    """

    _resource_types: ClassVar[dict[str, type[ResourceManager]]] = {}
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _searched: ClassVar[set[str]] = set()

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
            raise UnknownTypeError("fedmon and NEPI_SEARCH_PATH have no resource type", rtype, cls._resource_types)
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
    def populate(cls) -> None:
        """Register the types in the folders of ``NEPI_SEARCH_PATH`` that were not searched yet.

        A registered type is not replaced. A folder or file that cannot be used is logged.
        """
        with cls._lock:  # a plug-in may ask for a type while it is loaded
            for part in filter(str.strip, os.environ.get("NEPI_SEARCH_PATH", "").split(os.pathsep)):
                folder = os.path.abspath(os.path.expanduser(part))  # noqa: PTH100, PTH111 - pathlib raises for ~nobody
                if folder not in cls._searched:
                    cls._searched.add(folder)
                    cls._search(folder)

    @classmethod
    def _load_own(cls) -> None:
        """Register our own types whose names are free, even if loaded before: tests replace the register."""
        for own in map(importlib.import_module, _OWN):
            for each in map(vars(own).get, own.__all__):
                if isinstance(each, type) and issubclass(each, ResourceManager):
                    with cls._lock:
                        cls._resource_types = {each.get_rtype(): each, **cls._resource_types}

    @classmethod
    def _search(cls, folder: str) -> None:
        """Load the modules of a folder and of the packages in it, and register their types."""
        if not os.access(folder, os.R_OK | os.X_OK):
            logger.error("the folder %s of NEPI_SEARCH_PATH does not exist, or cannot be read", folder)
        # A package for each folder: files of two folders may have the same name.
        package = ModuleType(f"fedmon_experiment_plugin_{hashlib.sha256(folder.encode()).hexdigest()[:12]}")
        sys.modules[package.__name__], package.__path__ = package, [folder]
        for _, name, _ in pkgutil.walk_packages([folder], f"{package.__name__}.", onerror=lambda _: None):
            try:
                for each in vars(importlib.import_module(name)).values():
                    if isinstance(each, type) and each.__module__ == name and "_rtype" in vars(each):
                        rtype = _checked(each).get_rtype()
                        cls._resource_types = {rtype: each, **cls._resource_types}
                        if (taken := cls._resource_types[rtype]) is not each:
                            raise InvalidTypeError(f"the type {rtype} is taken by {taken.__module__}")
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's file; the others are still of use
                path = f"{folder}/{name.partition('.')[2].replace('.', '/')}"
                logger.error("plug-in %s cannot be loaded: %s", path, told(error))  # noqa: TRY400 - of one line


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
    return rclass
