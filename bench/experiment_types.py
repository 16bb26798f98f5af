"""The resources that `bench.experiment` runs: some that do nothing, some that take time, some with hooks of NEPI's."""

from __future__ import annotations

import threading
from typing import Any

from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.states import ResourceState

DEPLOY_S, RUN_S = 1.0, 1.5


class Plain(ResourceManager):
    """Does nothing but come to its states."""

    _rtype = "bench::Plain"


class Hooked(ResourceManager):
    """Has its own hook, which is called in a thread and does nothing."""

    _rtype = "bench::Hooked"

    def do_start(self) -> None:
        super().do_start()


class Node(ResourceManager):
    """The node that applications and interfaces are on."""

    _rtype = "bench::Node"

    def do_deploy(self) -> None:
        super().do_deploy()


class OnNode(ResourceManager):
    """Comes to READY when its node did; looks again after a while if not, as NEPI's types do."""

    _rtype = "bench::OnNode"

    def do_deploy(self) -> None:
        if any(each.state < ResourceState.READY for each in self.get_connected(Node)):
            self.ec.schedule(self.reschedule_delay, self.deploy)
        else:
            super().do_deploy()


class Application(OnNode):
    """Ends as soon as it was started."""

    _rtype = "bench::Application"

    def do_start(self) -> None:
        super().do_start()
        self.set_stopped()


class BlockingApplication(ResourceManager):
    """Takes a second to deploy and 1.5 to run, and holds a thread for as long."""

    _rtype = "bench::BlockingApplication"

    def do_deploy(self) -> None:
        _pass(DEPLOY_S)
        super().do_deploy()

    def do_start(self) -> None:
        super().do_start()
        _pass(RUN_S)
        self.set_stopped()


class ScheduledApplication(ResourceManager):
    """Takes as long, and holds no thread: it has itself called when the time has passed."""

    _rtype = "bench::ScheduledApplication"

    def __init__(self, ec: Any, guid: int) -> None:
        super().__init__(ec, guid)
        self._is_begun = False

    def do_deploy(self) -> None:
        if self._is_begun:
            super().do_deploy()
        else:
            self._is_begun = True
            self.ec.schedule(f"{DEPLOY_S:g}s", self.deploy)

    def do_start(self) -> None:
        super().do_start()
        self.ec.schedule(f"{RUN_S:g}s", self.stop)


def _pass(seconds: float) -> None:
    """Simulate work that takes a time."""
    threading.Event().wait(seconds)


for _each in (Plain, Hooked, Node, OnNode, Application, BlockingApplication, ScheduledApplication):
    ResourceFactory.register_type(_each)
