"""The attributes of one resource as the code of its type has them: a value that is set there is set in it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedmon.experiment.attributes import Attribute

_OF_THE_VIEW = frozenset({"value", "_read", "_write"})


class OwnAttribute(Attribute):
    """An attribute as it is now, whatever class it is of; setting its value asks the resource to set it.

    Templates are shared by all resources of a type: a value that is set in one would be everybody's.
    """

    def __init__(self, read: Callable[[], Attribute], write: Callable[[Any], object]) -> None:
        self._read, self._write = read, write

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_THE_VIEW:
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_read")(), name)

    @property
    def value(self) -> Any:
        """The value; setting one that does not fit raises InvalidAttributeValueError, a ValueError."""
        return self._read().value

    @value.setter
    def value(self, value: Any) -> None:
        self._write(value)


class OwnAttributes(Mapping[str, Attribute]):
    """The attributes by name."""

    def __init__(
        self, names: Mapping[str, object], read: Callable[[str], Attribute], write: Callable[[str, Any], object]
    ) -> None:
        self._names, self._read, self._write = names, read, write

    def __getitem__(self, name: str) -> Attribute:
        self._read(name)  # one that there is not is no view either
        return OwnAttribute(lambda: self._read(name), lambda value: self._write(name, value))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
