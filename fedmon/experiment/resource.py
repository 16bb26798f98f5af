"""The resource: what it is connected to, how far it is, and its verbs with the hooks that types override."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from fedmon.experiment.events import Verb
from fedmon.experiment.hook_calls import HookCall, is_within
from fedmon.experiment.progress import Progress
from fedmon.experiment.protocol import Experiment
from fedmon.experiment.states import ResourceState
from fedmon.experiment.templates import Template, clsinit, clsinit_copy
from fedmon.experiment.type_names import nothing_of
from fedmon.experiment.verbs import as_reason, failtrap, states_for, told

__all__ = ["Experiment", "ResourceManager", "clsinit", "clsinit_copy", "failtrap"]

CALLED: tuple[Verb, ...] = ("deploy", "start", "stop", "release", "fail")
_SETTERS: Mapping[str, str] = {
    "discover": "set_discovered",
    "reserve": "set_reserved",
    "provision": "set_provisioned",
    "deploy": "set_ready",
    "start": "set_started",
    "stop": "set_stopped",
    "fail": "set_failed",
    "release": "set_released",
}


@clsinit
class ResourceManager(Progress):
    """A resource of an experiment.

    Types override the ``do_`` hooks and end them with the parent's, which says that the state was reached; a hook that
    returns without it leaves the resource as it is, and may have scheduled its verb again. A `do_release` that has
    scheduled nothing then counts as done. One verb runs at a time. A hook that does not end holds back neither `fail`,
    which waits for nobody, nor `release`, which waits for
    ``_release_patience_s`` seconds. All methods are safe from any thread.
    """

    _release_patience_s: ClassVar[float] = 5.0
    __is_in_release = False  # mangled, for types have flags of much the same name

    @classmethod
    def overrides(cls, verb: str) -> bool:
        """Tell whether the type does anything of its own when a verb is called; else the verb only sets the state."""
        read, base = _BASE[verb]
        return bool(read(cls) != base)

    @classmethod
    def plain_verbs(cls) -> tuple[Verb, ...]:
        """Return those of the verbs that an experiment calls that do no more than set the state."""
        return tuple([verb for verb in CALLED if not cls.overrides(verb)])

    # --- what it is connected to --------------------------------------------------------------------------------------

    def register_connection(self, guid: int) -> None:
        """Connect it to another, if both agree. Raises InvalidConnectionError, UnknownGuidError."""
        self.ec.register_connection(self._guid, guid)

    def unregister_connection(self, guid: int) -> None:
        """Take it apart from another. Raises UnknownGuidError."""
        self.ec.unregister_connection(self._guid, guid)

    def valid_connection(self, guid: int) -> bool:  # noqa: ARG002 - for subclasses
        """Tell whether it takes a connection to another; for types to say."""
        return True

    def do_connect(self, guid: int) -> None:
        """Do what being connected takes; for types."""

    def do_disconnect(self, guid: int) -> None:
        """Undo what being connected took; for types."""

    def get_connected(self, rtype: str | type[Template] | None = None) -> list[ResourceManager]:
        """Return what it is connected to, by guid: all, or those of a type and of the types derived from it.

        Raises UnknownTypeError for a type that nobody registered.
        """
        connected = [self.ec.get_resource(guid) for guid in sorted(self.connections)]
        found = [each for each in connected if rtype is None or each.is_rm_instance(rtype)]
        return found if found or rtype is None else nothing_of(rtype)

    def is_rm_instance(self, rtype: str | type[Template]) -> bool:
        """Tell whether it is of a type, or of one derived from it."""
        if isinstance(rtype, type):
            return isinstance(self, rtype)
        return any(vars(each).get("_rtype") == rtype for each in type(self).__mro__)

    # --- verbs --------------------------------------------------------------------------------------------------------

    @failtrap
    def discover(self) -> None:
        """Find what the resource stands for."""
        self._run("discover", self.do_discover)

    @failtrap
    def reserve(self) -> None:
        """Reserve it."""
        self._run("reserve", self.do_reserve)

    @failtrap
    def provision(self) -> None:
        """Provide it."""
        self._run("provision", self.do_provision)

    @failtrap
    def configure(self) -> None:
        """Configure it; that is no state."""
        self._run("configure", self.do_configure)

    @failtrap
    def deploy(self) -> None:
        """Make it ready."""
        self._run("deploy", self.do_deploy)

    @failtrap
    def start(self) -> None:
        """Start it; also again, once it stopped."""
        self._run("start", self.do_start)

    @failtrap
    def stop(self) -> None:
        """Stop it."""
        self._run("stop", self.do_stop)

    def fail(self, reason: str = "") -> None:
        """Have it fail, now, even while another verb runs; its hook clears up when it is FAILED already."""
        self.reason = as_reason(reason) or self.reason
        has_turn = self.turn.take(timeout_s=0, even_if_over=True)
        try:
            if self.state < ResourceState.FAILED:
                # First the state, for others wait for it, and nobody knows how long the hook takes.
                self.end(ResourceState.FAILED)
                self._finish(self.do_fail, "fail")
        finally:
            if has_turn:
                self.turn.give()

    def release(self) -> None:
        """Give back what it holds. A hook that raises is logged, and the resource is RELEASED all the same."""
        self.turn.dismiss()
        has_turn = self.turn.take(timeout_s=self._release_patience_s, even_if_over=True)
        if not has_turn:
            self.warning(f"is released while a verb of it still runs, after {self._release_patience_s:g} s")
        try:
            # One that is being released already, as by a hook that asks for just that, is not begun again.
            if self.state is not ResourceState.RELEASED and not self.__is_in_release:
                self.__is_in_release = True
                try:
                    with HookCall(self, "release") as call:
                        is_well = self._finish(self.do_release, "release")
                    if not (is_well and call.has_scheduled):  # nobody is left who would say it
                        self.end(ResourceState.RELEASED)
                finally:
                    self.__is_in_release = False
        finally:
            if has_turn:
                self.turn.give()

    @failtrap
    def reconnect(self, verb: str | None) -> None:
        """Take up again what a process that died had begun; ``verb`` is the one that was under way."""
        if self.state >= ResourceState.FAILED and verb != "release":
            return
        has_turn = self.turn.take(even_if_over=True)
        try:
            with HookCall(self, "reconnect"):
                self.do_reconnect(verb)
        finally:
            if has_turn:
                self.turn.give()

    def _run(self, verb: str, hook: Callable[[], Any]) -> None:
        if not self._may(verb) or not self.turn.take(is_over=lambda: self.state >= ResourceState.FAILED):
            return
        try:
            if is_within(self, verb):
                self.debug(f"{verb} does nothing within itself")
            elif self._may(verb):  # it may have moved on while we waited
                with HookCall(self, verb):
                    hook()
        finally:
            self.turn.give()

    def _may(self, verb: str) -> bool:
        state = self.state
        if state in states_for(verb):
            return True
        # Who called too late, when it is all over, did nothing wrong.
        say = self.debug if state >= ResourceState.FAILED else self.error
        say(f"{verb} does nothing in state {state.name}")
        return False

    def _finish(self, hook: Callable[[], Any], verb: str) -> bool:
        """Run the hook of a last verb; false where it raised."""
        try:
            hook()
        except Exception as error:  # noqa: BLE001 - a type's own code; the resource ends all the same
            self.warning(f"{verb} raised {told(error)}")
            return False
        except BaseException:
            self.end(ResourceState.FAILED if verb == "fail" else ResourceState.RELEASED)
            raise
        return True

    def end_at_once(self) -> None:
        """End what runs, for nobody waits for its release any longer; for types, which must not block here."""

    # --- hooks: types override them -----------------------------------------------------------------------------------

    def do_discover(self) -> None:
        """Find it."""
        self.set_discovered()

    def do_reserve(self) -> None:
        """Reserve it."""
        self.set_reserved()

    def do_provision(self) -> None:
        """Provide it."""
        self.set_provisioned()

    def do_configure(self) -> None:
        """Configure it."""

    def do_deploy(self) -> None:
        """Make it ready."""
        self.set_ready()

    def do_start(self) -> None:
        """Start it."""
        self.set_started()

    def do_stop(self) -> None:
        """Stop it."""
        self.set_stopped()

    def do_release(self) -> None:
        """Give back what it holds."""
        self.set_released()

    def do_fail(self) -> None:
        """Clear up after a failure; the resource is FAILED already."""
        self.set_failed()

    def do_reconnect(self, verb: str | None) -> None:
        """Call a verb anew that was under way; types whose work goes on elsewhere ask there how it stands."""
        if verb is not None:
            getattr(self, verb)()


def _methods_of(verb: str) -> tuple[Callable[[type[ResourceManager]], Any], Any]:
    read = operator.attrgetter(verb, f"do_{verb}", _SETTERS.get(verb, verb))
    return read, read(ResourceManager)


# How to read what a verb calls, by verb, and those methods that do nothing but set the state.
_BASE = {verb: _methods_of(verb) for verb in (*_SETTERS, "configure")}
