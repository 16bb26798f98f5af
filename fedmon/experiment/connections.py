"""Connections between resources: both are asked, and either both list the other or none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedmon.experiment.errors import InvalidConnectionError
from fedmon.experiment.verbs import told

if TYPE_CHECKING:
    from fedmon.experiment.resource import ResourceManager


def connect(one: ResourceManager, other: ResourceManager, note: Callable[[], None]) -> None:
    """Connect two resources, unless they are; ``note`` writes it down once both have agreed and done their part.

    Raises InvalidConnectionError, and then nothing is connected: what a hook did already is undone.
    """
    if one.guid == other.guid:
        raise InvalidConnectionError(f"{one.name} cannot be connected to itself")
    if other.guid in one.connections:
        return
    for asked, about in ((one, other), (other, one)):
        if not _asked(asked.valid_connection, asked, about):
            raise InvalidConnectionError(f"{asked.name} takes no connection to {about.name}: nothing was connected")
    done: list[tuple[ResourceManager, ResourceManager]] = []
    try:
        for connected, neighbour in ((one, other), (other, one)):
            _asked(connected.do_connect, connected, neighbour)
            done.append((connected, neighbour))
        note()
    except BaseException:
        for connected, neighbour in reversed(done):
            _undo(connected, neighbour)
        raise


def disconnect(one: ResourceManager, other: ResourceManager, note: Callable[[], None]) -> None:
    """Take two resources apart, whatever their hooks say to it; ``note`` writes it down."""
    if other.guid in one.connections:
        _undo(one, other)
        _undo(other, one)
        note()


def _asked(hook: Callable[[int], object], rm: ResourceManager, other: ResourceManager) -> bool:
    try:
        return bool(hook(other.guid))
    except Exception as error:
        raise InvalidConnectionError(
            f"{rm.name} and {other.name} were not connected, for {rm.name} failed: {told(error)}"
        ) from error


def _undo(rm: ResourceManager, other: ResourceManager) -> None:
    try:
        rm.do_disconnect(other.guid)
    except Exception as error:  # noqa: BLE001 - a type's own code; the connection ends all the same
        rm.error(f"could not be taken apart from {other.name}: {told(error)}")
