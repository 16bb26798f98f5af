"""Experiments with types of one's own: each test derives what it needs and registers it; it stays registered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmon.experiment import ExperimentController, ResourceAction, ResourceFactory, ResourceManager, ResourceState
from fedmon.experiment.situation import Guids

NEW, DISCOVERED, RESERVED, PROVISIONED, READY, STARTED, STOPPED, FAILED, RELEASED = ResourceState
DEPLOY, START, STOP = ResourceAction


@contextmanager
def experiment(folder: Path, *types: type[ResourceManager], **options: Any) -> Iterator[ExperimentController]:
    """Give a controller that knows some types, in a folder."""
    for each in types:
        ResourceFactory.register_type(each)
    with ExperimentController("test", folder, **options) as ec:
        yield ec


@contextmanager
def deployed(folder: Path, options: Mapping[str, Any] | None = None, /, **hooks: Any) -> Iterator[ExperimentController]:
    """Give an experiment in which resource 1 was deployed, of a type with some hooks."""
    with experiment(folder, own("test::Own", **hooks)) as ec:
        ec.register_resource("test::Own", **(options or {}))
        ec.deploy()
        yield ec


def added(ec: ExperimentController, rclass: type[ResourceManager], **options: Any) -> Any:
    """Register a type and a resource of it; return that."""
    ResourceFactory.register_type(rclass)
    return ec.get_resource(ec.register_resource(rclass.get_rtype(), **options))


def own(rtype: str, **members: Any) -> type[ResourceManager]:
    """Return a type with members such as hooks."""
    return type(rtype.rpartition(":")[2].title(), (ResourceManager,), {"_rtype": rtype, **members})


def started(ec: ExperimentController, guids: Guids | None = None) -> None:
    """Deploy an experiment, and wait until resources, all by default, are STARTED."""
    ec.deploy()
    found = ec.wait_started(guids, timeout=60)
    assert found, found.reason


def blocking(gate: threading.Event, *, says_first: bool = False) -> Callable[[ResourceManager], None]:
    """Return a `do_start` that waits for a gate, after or before it says STARTED."""

    def do_start(self: ResourceManager) -> None:
        if says_first:
            self.set_started()
        gate.wait(60.0)
        if not says_first:
            self.set_started()

    return do_start
