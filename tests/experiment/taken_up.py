"""Types of resources for runs that are taken up again: one sends its work away, as a job goes to a node."""

from __future__ import annotations

import fcntl
from typing import Any

from fedmon.experiment.attributes import Attribute, Flags, Trace
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.resource import ResourceManager, clsinit_copy


@clsinit_copy
class Sent(ResourceManager):
    """Writes a line into a ledger when it starts, once for each id, and ends by itself."""

    _rtype = "test::Sent"

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(Attribute("ledger", "The file."))
        cls._register_attribute(Attribute("note", "Set by a condition.", default=""))
        cls._register_attribute(Attribute("token", "A secret.", flags=Flags.Credential))

    @classmethod
    def _register_traces(cls) -> None:
        cls._register_trace(Trace("log", "Nothing."))

    def do_start(self) -> None:
        self._work()
        super().do_start()
        self.ec.schedule("20ms", self.stop)

    def do_reconnect(self, verb: str | None) -> None:
        super().do_reconnect(verb)
        if verb is None and self.state.name == "STARTED":
            self._work()
            self.ec.schedule("20ms", self.stop)

    def _work(self) -> None:
        with open(self.get("ledger"), "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if str(self.guid) not in file.read().split():
                file.write(f"{self.guid}\n")


@clsinit_copy
class Open(ResourceManager):
    """Takes its time to be READY, and stays STARTED."""

    _rtype = "test::Open"

    def do_deploy(self) -> None:
        self.ec.schedule("30ms", self.set_ready)


def use_types() -> None:
    for rclass in (Sent, Open):
        kept: Any = rclass
        ResourceFactory.register_type(kept)
