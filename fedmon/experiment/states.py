"""The states of resources, controllers, failures and tasks, with the names and the order of NEPI 6."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class ResourceState(IntEnum):
    """The states of a resource, in order. A wait for one accepts later ones: FAILED and RELEASED are past STOPPED."""

    NEW = 0
    DISCOVERED = 1
    RESERVED = 2
    PROVISIONED = 3
    READY = 4
    STARTED = 5
    STOPPED = 6
    FAILED = 7
    RELEASED = 8


ResourceState2str: Mapping[ResourceState, str] = {state: state.name for state in ResourceState}
"""The names of states in files."""


class ResourceAction(IntEnum):
    """The actions that wait for conditions."""

    DEPLOY = 0
    START = 1
    STOP = 2


class ECState(IntEnum):
    """The states of a controller."""

    RUNNING = 1
    FAILED = 2
    RELEASED = 3
    TERMINATED = 4


class FailureLevel(IntEnum):
    """The part that failed: none, resources that the experiment needs, or the controller itself."""

    OK = 1
    RM_FAILURE = 2
    EC_FAILURE = 3


class TaskStatus(IntEnum):
    """The outcome of a scheduled task."""

    NEW = 0
    DONE = 1
    ERROR = 2
