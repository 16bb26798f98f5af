"""Experiments with types of one's own: each test derives what it needs and registers it; it stays registered.

The types "test::Plain", which has no code, and "test::Short" are always there.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmon.experiment import ExperimentController, ResourceAction, ResourceFactory, ResourceManager, ResourceState
from fedmon.experiment.journal import NAME
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


class Short(ResourceManager):
    """Stops soon after it was started."""

    _rtype = "test::Short"

    def do_start(self) -> None:
        super().do_start()
        self.ec.schedule("10ms", self.stop)


for each in (own("test::Plain"), Short):
    ResourceFactory.register_type(each)


def plain(ec: ExperimentController, count: int, rtype: str = "test::Plain", **options: Any) -> list[int]:
    """Register resources of one type."""
    return [ec.register_resource(rtype, **options) for _ in range(count)]


def started(ec: ExperimentController, guids: Guids | None = None) -> None:
    """Deploy an experiment, and wait until resources, all by default, are STARTED."""
    ec.deploy()
    found = ec.wait_started(guids, timeout=60)
    assert found, found.reason


def killed(code: str, *words: object) -> list[str]:
    """Run code in a process that kills itself; return the words that it printed."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=110)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.split()


def killed_now(ec: ExperimentController, *, without: str = "") -> Path:
    """Copy a run as it is left if its process is killed now; lines of its journal that match are not there."""
    copy = Path(ec.local_dir, "killed", ec.exp_id, ec.run_id)
    shutil.copytree(ec.run_dir, copy)
    if without:
        lines = (copy / NAME).read_text().splitlines(keepends=True)
        (copy / NAME).write_text("".join(line for line in lines if not re.search(without, line)))
    return copy


def raising(kind: type[Exception], *words: str) -> Callable[[ResourceManager], None]:
    """Return a hook that raises an error of its own each time."""

    def hook(_self: ResourceManager) -> None:
        raise kind(*words)

    return hook


def flaky(verb: str, count: Iterator[int], failures: int) -> Callable[[ResourceManager], None]:
    """Return a hook that says its state first, and raises so often."""

    def hook(self: ResourceManager) -> None:
        getattr(ResourceManager, f"do_{verb}")(self)
        if next(count) < failures:
            raise OSError("no route")

    return hook


def blocking(gate: threading.Event, *, says_first: bool = False) -> Callable[[ResourceManager], None]:
    """Return a `do_start` that waits for a gate, after or before it says STARTED."""

    def do_start(self: ResourceManager) -> None:
        if says_first:
            self.set_started()
        gate.wait(60.0)
        if not says_first:
            self.set_started()

    return do_start
