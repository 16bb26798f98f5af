"""`ExperimentController`: registers resources, deploys them by their conditions, waits, explains, and releases all."""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast

from msgspec.structs import replace

from fedmon.common.clock import Deadline, utc_now
from fedmon.common.errors import FedmonError
from fedmon.common.files import storage_errors
from fedmon.common.text import plural
from fedmon.experiment import failure, nepi
from fedmon.experiment.calls import Function, Tasks, prepared
from fedmon.experiment.check.diagram import PFormats, picture_of, plot
from fedmon.experiment.check.explain import Explanation, explain
from fedmon.experiment.check.graph import titled
from fedmon.experiment.check.plan import ExperimentPlan, plan, refuse_impossible
from fedmon.experiment.conditions import (
    AnyCondition,
    Metric,
    MetricCondition,
    StateCondition,
    is_text,
    number_of,
    state_of,
)
from fedmon.experiment.document.description import Description, even
from fedmon.experiment.document.experiment import refusals, resources_of
from fedmon.experiment.document.files import SFormats, checked_format, read, text_in, write
from fedmon.experiment.durations import seconds
from fedmon.experiment.engine import Engine, WaitResult, here
from fedmon.experiment.errors import (
    DeadlockError,
    ExperimentAbortedError,
    ExperimentOverError,
    InvalidConditionError,
    InvalidExperimentError,
    InvalidTaskError,
    UnknownGuidError,
)
from fedmon.experiment.events import Became, DeployAsked, Measured, Opened, ReleaseAsked, Removed, Retry, Verb
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import (
    DOCUMENT,
    NAME,
    Journal,
    ReplayedRun,
    Reports,
    new_run_dir,
    replayed_run,
    run_id_of,
)
from fedmon.experiment.registry import Registry
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.situation import Guids, State
from fedmon.experiment.states import ECState, FailureLevel, ResourceAction, ResourceState

if TYPE_CHECKING:
    from fedmon.compat.nepi.scheduler import Task
    from fedmon.compat.nepi.topology import NetGraph
    from fedmon.experiment.document.description import Nid, Topology
    from fedmon.researcher.federation import Federation

_P = ParamSpec("_P")
_R = TypeVar("_R")
logger = logging.getLogger(__name__)

RELEASE_TIMEOUT_S = 60.0
"""How long releases may take before the experiment ends without them."""
HURRY_S = 1.0
"""How long they may take after an interrupt."""
CLOSE_S = 2.0


def _of_resource(
    method: Callable[Concatenate[ResourceManager, _P], _R],
) -> Callable[Concatenate[ExperimentController, int | str, _P], _R]:
    """Return a method that calls one of a resource, given first by guid or name."""

    def forwarded(self: ExperimentController, guid: int | str, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        called: Callable[_P, _R] = getattr(self.get_resource(guid), forwarded.__name__)
        return called(*args, **kwargs)

    signature = inspect.signature(method)
    own, *others = signature.parameters.values()
    guid = own.replace(name="guid", annotation="int | str")
    functools.update_wrapper(forwarded, method)
    vars(forwarded)["__signature__"] = signature.replace(parameters=[own.replace(annotation=own.empty), guid, *others])
    return cast("Callable[Concatenate[ExperimentController, int | str, _P], _R]", forwarded)  # `guid` may be a keyword


def _time_of(name: str) -> Callable[[ExperimentController, int | str], datetime.datetime | None]:
    def get_time(self: ExperimentController, guid: int | str) -> datetime.datetime | None:
        return cast("datetime.datetime | None", getattr(self.get_resource(guid), name))

    get_time.__doc__ = f"Return the {name.replace('_', ' ')} of a resource, in UTC; None if it was never reached."
    return get_time


class ExperimentController:
    """Runs an experiment: registers resources, deploys them by their conditions, waits, and releases all.

    A context manager, which always releases. Safe from any thread; only `wait_*`, verbs, `release` and `shutdown`
    block. Names stand for guids, and texts for states and actions. The files of the run are in
    ``local_dir/exp_id/run_id``; ``journal=False`` keeps none. At most ``max_running`` hooks run at once (default: no
    limit). Without ``federation`` one is opened from the settings when a resource needs it, and closed at the end.
    """

    exp_id = run_id = local_dir = exp_dir = run_dir = ""
    """The ids of experiment and run; the folders of all experiments, of this one, and of the run."""

    def __init__(
        self,
        exp_id: str | None = None,
        local_dir: str | Path | None = None,
        persist: bool = False,  # noqa: FBT001, FBT002 - NEPI's signature
        fm: failure.FailureManager | None = None,
        add_node_callback: Callable[[Any, Nid], object] | None = None,
        add_edge_callback: Callable[[Any, Nid, Nid], object] | None = None,
        *,
        federation: Federation | None = None,
        journal: bool = True,
        max_running: int | None = None,
        nthreads: int | None = None,
        left: ReplayedRun | None = None,
        **netgraph: Any,
    ) -> None:
        """Begin a run, or continue with one that another process ``left``; see `reconnect`.

        ``nthreads`` is NEPI's name for ``max_running``. Further keywords are those of `NetGraph`; the callbacks are
        called for each of its nodes and edges.
        """
        opened = None if left is None else left.opened
        self.folder = new_run_dir(exp_id, local_dir) if left is None else left.folder
        self.local_dir, self.exp_dir = str(self.folder.parent.parent), str(self.folder.parent)
        self.run_dir, self.exp_id, self.run_id = str(self.folder), self.folder.parent.name, self.folder.name
        self.persist = bool(persist if opened is None else opened.persist)
        self._is_journaled = journal
        self.logger = logger
        self.max_running = _limit(max_running, nthreads) if opened is None else opened.threads or None
        self.nthreads = self.max_running  # NEPI's name
        if not os.environ.keys().isdisjoint({"NEPI_LOGLEVEL", "NEPI_LOG"}):
            nepi("environment").set_levels(os.environ)
        self.fm = failure.FailureManager() if fm is None else fm
        self._topology: Topology | None = None
        self._netgraph: NetGraph | None = nepi("topology").NetGraph(**netgraph) if netgraph else None
        self._given, self._opened = federation, cast("Federation | None", None)
        self._unreachable: FedmonError | None = None
        self._lock, self._federation_lock = threading.RLock(), threading.Lock()
        self._is_released = self._is_terminated = self._is_ending = False
        self._ended, self.release_timeout_s = threading.Event(), RELEASE_TIMEOUT_S
        if left is None:
            left = ReplayedRun(folder=self.folder, journal=Journal(self.folder / NAME) if journal else None)
        self._reports = left.reports
        self.registry = Registry(self, left)
        self.engine = Engine(left, find=self.registry.find, inform=self._inform, max_running=self.max_running)
        self.tasks = Tasks(self.engine, left.tasks)
        try:
            self.fm.set_ec(self)
            if opened is None:
                self.engine.post(Opened(process=os.getpid(), persist=self.persist, threads=self.max_running or 0))
            self.registry.restore(left)
            if self._netgraph is not None:
                nepi("topology").call_back(self, self._netgraph, add_node_callback, add_edge_callback)
        except BaseException:
            self.give_up() if left.state.resources else self.shutdown()
            raise

    @classmethod
    def reconnect(
        cls,
        run_dir: str | Path,
        *,
        fm: failure.FailureManager | None = None,
        federation: Federation | None = None,
        attributes: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Self:
        """Continue the run in a folder after its process died: running work is adopted, nothing runs twice.

        ``attributes`` are credentials by guid, which no file holds. ``fm`` is the failure manager if it was made in
        Python; it does not judge old failures again. Raises StorageError without a journal, FolderInUseError while
        the process lives, and ConnectionFailedError if a resource needs the broker: then the run stays as it was.
        """
        left = replayed_run(run_dir)
        try:
            document = left.folder / DOCUMENT
            if fm is None and document.is_file():
                fm = failure.manager_of(read(document).failures)
            made = cls(left=left, fm=fm, federation=federation)
        except BaseException:
            if left.journal is not None:
                left.journal.close()
            raise
        running = [one for one in left.state.resources.values() if one.state < ResourceState.FAILED]
        try:
            for guid, values in (attributes or {}).items():
                made.get_resource(guid).give(values)
            if left.state.is_aborted:
                failure.FailureManager.set_ec(made.fm, made, left.state.level, left.state.level_reason)
            if any(made.get_resource(one.guid).asks_federation for one in running):
                _ = made.federation  # each of them would fail without a connection, and the run with it
            made.registry.take_up(left)
            for guid in left.unjudged:
                made._inform(guid)
            for task in left.due.values():
                made.tasks.resume(task)
        except BaseException:
            made.give_up()
            raise
        return made

    @classmethod
    def load(
        cls,
        filepath: str | Path,
        format: str | None = None,  # noqa: A002 - NEPI's name
        *,
        local_dir: str | Path | None = None,
        fm: failure.FailureManager | None = None,
        federation: Federation | None = None,
    ) -> Self:
        """Make a controller of a document of fedmon or NEPI 6, in a new run with all NEW.

        ``format`` is by default that of the file name; ``local_dir`` replaces the document's. Raises DescriptionError,
        NotFoundError, UnknownTypeError, and InvalidInputError for an unknown format.
        """
        return cls.from_description(read(filepath, format=format), local_dir=local_dir, fm=fm, federation=federation)

    @classmethod
    def from_description(
        cls,
        description: Description,
        *,
        local_dir: str | Path | None = None,
        fm: failure.FailureManager | None = None,
        federation: Federation | None = None,
        journal: bool = True,
        masked: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Self:
        """Make a controller of a description; ``masked`` are values by guid that no document holds.

        ``fm`` is by default the description's. Raises the errors of registering, naming the resource.
        """
        made = cls(
            description.exp_id,
            description.local_dir if local_dir is None else local_dir,
            persist=description.persist,
            fm=failure.manager_of(description.failures) if fm is None else fm,
            federation=federation,
            journal=journal,
            max_running=description.max_running,
        )
        try:
            made._topology = description.topology
            for _, error in refusals(description, made.registry, masked=masked or {}, is_strict=True):
                raise error
            if journal and description.failures is not None:  # for `reconnect`
                write(made.describe(), made.folder / DOCUMENT)
        except BaseException:
            made.shutdown()
            raise
        return made

    def repeats(self) -> Callable[[], Self]:
        """Return a function that makes controllers of the experiment as it is now, with all NEW.

        Their federation, credentials, journal option and class are those of this one, and the failure manager is a
        copy.
        """
        description = self.describe()
        masked = {
            guid: {each.name: each.value for each in self.get_resource(guid).changed_attributes() if each.is_masked}
            for guid in self.resources
        }
        options: dict[str, Any] = {"federation": self._given, "journal": self._is_journaled, "masked": masked}
        return lambda: self.from_description(description, fm=copy.copy(self.fm), **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<experiment {self.exp_id}, run {self.run_id}: {self.ecstate.name}{', aborted' if self.abort else ''}>"

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def federation(self) -> Federation:
        """The federation of the experiment, opened from the settings if none was given.

        Raises ConnectionFailedError, and ExperimentOverError after `shutdown`.
        """
        if self._given is not None:
            return self._given
        before = self._unreachable
        with self._federation_lock:
            if self._unreachable is not None and self._unreachable is not before:
                raise self._unreachable  # one attempt is enough for all threads that waited
            if self._opened is None:
                self.engine.check_open()
                from fedmon.researcher.federation import Federation

                try:
                    self._opened = Federation().start()
                except FedmonError as error:
                    self._unreachable = error
                    raise
            return self._opened

    @property
    def ecstate(self) -> ECState:
        """The state of the controller."""
        if self._is_terminated:
            return ECState.TERMINATED
        if self.failure_level is FailureLevel.EC_FAILURE:
            return ECState.FAILED
        return ECState.RELEASED if self._is_released else ECState.RUNNING

    @property
    def failure_level(self) -> FailureLevel:
        """The level of the worst failure."""
        return self.engine.state.level

    @property
    def abort(self) -> bool:
        """Whether a failure ended the experiment."""
        return self.failure_level is not FailureLevel.OK

    @property
    def snapshot(self) -> State:
        """The state of everything at this moment; it does not change."""
        return self.engine.state

    @property
    def netgraph(self) -> NetGraph | None:
        """The topology that the experiment was made from, or None."""
        if self._netgraph is None and self._topology is not None:
            self._netgraph = nepi("topology").build(self._topology)
        return self._netgraph

    @property
    def resources(self) -> list[int]:
        """The guids of all resources, in order of registration."""
        return list(self.registry)

    # --- registering --------------------------------------------------------------------------------------------------

    def register_resource(
        self,
        rtype: str,
        guid: int | None = None,
        *,
        name: str = "",
        autoDeploy: bool = False,  # noqa: N803 - NEPI's name
        connectedTo: Guids | None = None,  # noqa: N803 - NEPI's name
        after: Guids = (),
        timeouts: Mapping[Verb, float] | None = None,
        retry: Mapping[Verb, Retry] | None = None,
        **attributes: Any,
    ) -> int:
        """Make a resource and return its guid; further keywords set attributes.

        It starts when all of ``after`` are STOPPED. ``name`` stands for the guid, unless the type has an attribute
        ``name``. Nothing is registered on errors: UnknownTypeError, DuplicateGuidError, InvalidAttributeValueError, and
        ExperimentAbortedError for ``autoDeploy`` after a failure.
        """
        self._check_deployable() if autoDeploy else self._check_open()
        others = () if connectedTo is None else self.registry.guids_of(connectedTo)
        awaited = self.registry.guids_of(after)
        if name and ResourceFactory.get_resource_type(rtype).has_attribute("name"):
            attributes["name"], name = name, ""
        number = self.registry.register(rtype, guid, attributes=attributes, timeouts=timeouts, retry=retry, name=name)
        return self._related(number, awaited, others, is_deployed=autoDeploy)

    def call(self, function: Callable[..., Any], *args: Any, after: Guids = (), name: str = "") -> int:
        """Register a function that is called once when all of ``after`` are STOPPED; return the guid.

        Raises InvalidTaskError for anything else, coroutine functions too.
        """
        self._check_open()
        awaited = self.registry.guids_of(after)
        number = self.registry.register("python::Function", None, name=name, prepare=prepared(function, args))
        return self._related(number, awaited)

    def _related(
        self, number: int, awaited: Iterable[int], others: Iterable[int] = (), *, is_deployed: bool = False
    ) -> int:
        """Connect a new resource and have it wait for others, or remove it; return its guid."""
        try:
            for other in others:
                self.register_connection(number, other)
            if awaited:
                self.register_condition(number, ResourceAction.START, awaited, ResourceState.STOPPED)
            if is_deployed:
                self.deploy(number)
        except BaseException:
            self.remove_resource(number)
            raise
        return number

    def result(self, guid: int | str) -> Any:
        """Return the result of a function of `call`, or raise its exception.

        Raises InvalidStateError before, and InvalidTaskError for another resource.
        """
        resource = self.get_resource(guid)
        if not isinstance(resource, Function):
            raise InvalidTaskError(f"{resource.name} is not a function: ec.result is for resources of ec.call")
        return resource.result()

    def remove_resource(self, guid: int) -> None:
        """Remove a resource from the experiment; a command that runs is killed."""
        resource = self.get_resource(guid)
        self._discard([resource.guid])
        _kill(resource)

    def _discard(self, guids: Iterable[int]) -> None:
        gone = dict.fromkeys(guid for guid in guids if guid in self)
        if gone:
            self.engine.note(Removed(guids=tuple(gone)))
            self.registry.remove(gone)

    def __contains__(self, guid: int) -> bool:
        return guid in self.registry

    def get_resource(self, guid: int | str) -> ResourceManager:
        """Return a resource by guid or name. Raises UnknownGuidError with the known ones."""
        return self.registry.get(guid)

    def get_resources_by_type(self, rtype: str) -> list[ResourceManager]:
        """Return the resources of exactly a type."""
        return [one for one in self.registry.of_type(rtype) if one.get_rtype() == rtype]

    def filter_resources(self, rtype: str | type[ResourceManager]) -> list[int]:
        """Return the guids of the resources of a type and of types derived from it."""
        return [resource.guid for resource in self.registry.of_type(rtype)]

    def register_connection(self, guid1: int | str, guid2: int | str) -> None:
        """Connect two resources. Raises InvalidConnectionError naming the one that refused."""
        self.registry.connect(guid1, guid2)

    def unregister_connection(self, guid1: int | str, guid2: int | str) -> None:
        """Disconnect two resources; errors of their hooks are logged."""
        self.registry.disconnect(guid1, guid2)

    def register_condition(
        self,
        guids1: Guids,
        action: ResourceAction | str,
        guids2: Guids,
        state: ResourceState | str | None = None,
        time: str | None = None,
        *,
        metric: Metric | None = None,
        at_least: int | None = None,
        timeout: str | None = None,
    ) -> AnyCondition:
        """Delay an action of ``guids1`` until ``guids2`` are in a state since ``time``, or have reported a metric.

        Raises InvalidConditionError, InvalidTimeError, UnknownGuidError.
        """
        group, timeout_s = self.registry.guids_of(guids2), seconds(timeout) if timeout else None
        made: AnyCondition
        if metric is None:
            made = StateCondition(
                number=0, group=group, state=state_of(state), delay_s=seconds(time), at_least=at_least,
                timeout_s=timeout_s,
            )  # fmt: skip
        elif state is not None:
            raise InvalidConditionError("a condition asks for a state or for a metric: register two conditions")
        else:
            made = MetricCondition(number=0, group=group, metric=metric, at_least=at_least, timeout_s=timeout_s)
        return self.registry.add_condition(guids1, action, made)

    def unregister_condition(self, guids1: Guids, guids2: Guids, action: ResourceAction | str | None = None) -> None:
        """Remove ``guids2`` from the conditions of an action of ``guids1``; None: of all actions."""
        self.registry.remove_conditions(guids1, guids2, action)

    def set_with_conditions(
        self,
        name: str,
        value: Any,
        guids1: Guids,
        guids2: Guids,
        state: ResourceState | str,
        time: str | None = None,
    ) -> None:
        """Set an attribute of ``guids1`` when they are STARTED and ``guids2`` are in a state since ``time``."""
        group = self.registry.guids_of(guids2)
        made = StateCondition(number=0, group=group, state=state_of(state), delay_s=seconds(time))
        self.registry.add_set(guids1, name, value, made)

    # --- attributes, traces and states --------------------------------------------------------------------------------

    get_attributes = _of_resource(ResourceManager.get_attributes_of_instance)
    get_attribute = _of_resource(ResourceManager.get_attribute_of_instance)
    get = _of_resource(ResourceManager.get)
    set = _of_resource(ResourceManager.set)
    get_traces = _of_resource(ResourceManager.get_traces_of_instance)
    enable_trace = _of_resource(ResourceManager.enable_trace)
    trace_enabled = _of_resource(ResourceManager.trace_enabled)
    trace = _of_resource(ResourceManager.trace)
    discover, reserve = _of_resource(ResourceManager.discover), _of_resource(ResourceManager.reserve)
    provision, start = _of_resource(ResourceManager.provision), _of_resource(ResourceManager.start)
    stop = _of_resource(ResourceManager.stop)

    get_discover_time, get_reserved_time = _time_of("discover_time"), _time_of("reserved_time")
    get_provision_time, get_ready_time = _time_of("provision_time"), _time_of("ready_time")
    get_start_time, get_stop_time = _time_of("start_time"), _time_of("stop_time")
    get_failed_time, get_release_time = _time_of("failed_time"), _time_of("release_time")

    def get_global(self, rtype: str, name: str) -> Any:
        """Return a global attribute of a type."""
        return ResourceFactory.get_resource_type(rtype).get_global(name)

    def set_global(self, rtype: str, name: str, value: Any) -> None:
        """Set a global attribute of a type, for all its resources that did not set it."""
        rclass = ResourceFactory.get_resource_type(rtype)
        rclass.set_global(name, value)
        for resource in self.registry.of_type(rclass):
            resource.note_global(name)

    def state(self, guid: int | str, hr: bool = False) -> ResourceState | str:  # noqa: FBT001, FBT002 - NEPI's
        """Return the state of a resource; its name if ``hr``."""
        found = self.get_resource(guid).state
        return found.name if hr else found

    # --- deploying and waiting ----------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_ending:
            raise ExperimentOverError("the experiment was shut down: make a new ExperimentController")

    def _check_deployable(self) -> None:
        self._check_open()
        state = self.engine.state
        if state.is_aborted:
            raise ExperimentAbortedError(
                f"a failure ended the experiment, and nothing more is deployed: {state.level_reason}; "
                f"release it, and make a new ExperimentController"
            )

    def deploy(
        self,
        guids: Guids | None = None,
        wait_all_ready: bool = True,  # noqa: FBT001, FBT002 - NEPI's signature
        group: int | None = None,
    ) -> int:
        """Deploy and start resources, all NEW ones by default, by their conditions; return the id of their group.

        STOPPED resources stay so. Raises ImpossiblePlanError with the problems, and ExperimentAbortedError after a
        failure ended the experiment.
        """
        self._check_deployable()
        seen = self.engine.state.resources
        if guids is None:
            chosen = tuple(guid for guid in self.resources if guid in seen and seen[guid].state is ResourceState.NEW)
        else:
            chosen = self.registry.guids_of(guids)
        refuse_impossible(
            self.engine.state,
            deploying=chosen,
            group=group,
            wait_all_ready=bool(wait_all_ready),
            asked_for=self.registry.asked_for,
            problems=self.registry.missing(chosen),
        )
        with self._lock:
            number = max(self.engine.state.groups, default=0) + 1 if group is None else group
            self._is_released = False
            self.engine.post(DeployAsked(guids=chosen, group=number, wait_all_ready=bool(wait_all_ready)))
        return number

    def wait(
        self,
        guids: Guids | None,
        state: ResourceState | str,
        quit: Callable[[], object] | None = None,  # noqa: A002 - NEPI's name
        *,
        timeout: float | None = None,
    ) -> WaitResult:
        """Wait until resources (None: all) are at a state at least, or ``quit()`` is true; ``timeout`` in seconds.

        A failure that ends the experiment ends the wait. Raises UnknownGuidError, InvalidConditionError for an unknown
        state, and DeadlockError in a hook that would wait for its own resource.
        """
        chosen, wanted = tuple(self.registry) if guids is None else self.registry.guids_of(guids), state_of(state)
        if timeout is None and quit is None and wanted < ResourceState.FAILED:
            for own in (hook.rm for hook in here.hooks if hook.rm.ec is self):
                if own.guid in chosen and own.state < wanted:
                    raise DeadlockError(f"{own.name} would wait in its own hook to be {wanted.name}")
        heeds_abort = wanted is not ResourceState.RELEASED
        found = self.engine.wait(chosen, wanted, timeout_s=timeout, heeds_abort=heeds_abort, quit_asked=quit)
        return found if found or found.reason else replace(found, reason=self._why(found, timeout))

    def _why(self, found: WaitResult, timeout_s: float | None) -> str:
        """Return why a wait ended before all reached the state."""
        left = found.timed_out or found.left
        if not left:
            return "; ".join(f"{titled(guid, self.snapshot)} failed: {why}" for guid, why in found.reasons.items())
        why = ""
        with contextlib.suppress(StopIteration, UnknownGuidError):  # if all were removed, or one at this moment
            why = str(self.explain(next(guid for guid in left if guid in self))).partition("\n")[0]
        more = f", and {len(left) - 1} more" if len(left) > 1 else ""
        return f"{f'timed out after {timeout_s:g} s' if found.timed_out else 'ended by its caller'}: {why}{more}"

    def wait_deployed(self, guids: Guids | None = None, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources, all by default, are READY at least; ``timeout`` in seconds."""
        return self.wait(guids, ResourceState.READY, timeout=timeout)

    def wait_started(self, guids: Guids | None = None, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources, all by default, are STARTED at least; ``timeout`` in seconds."""
        return self.wait(guids, ResourceState.STARTED, timeout=timeout)

    def wait_finished(self, guids: Guids | None = None, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources, all by default, are STOPPED at least; ``timeout`` in seconds."""
        return self.wait(guids, ResourceState.STOPPED, timeout=timeout)

    def wait_released(self, guids: Guids | None = None, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources, all by default, are RELEASED at least; ``timeout`` in seconds."""
        return self.wait(guids, ResourceState.RELEASED, timeout=timeout)

    # --- the end ------------------------------------------------------------------------------------------------------

    def release(self, guids: Guids | None = None) -> WaitResult:
        """Release resources, all by default, and wait for that.

        A release that takes too long is given up: the resource is RELEASED, with the reason. Hooks and tasks do not
        wait.
        """
        chosen = tuple(self.registry) if guids is None else self.registry.guids_of(guids)
        self.engine.note(ReleaseAsked(guids=chosen))
        is_hook = self._is_within()
        timeout_s = 0.0 if is_hook else self.release_timeout_s
        found = self.engine.wait(chosen, ResourceState.RELEASED, timeout_s=timeout_s, heeds_abort=False)
        if found.timed_out and not is_hook:
            logger.error("resources %s did not release themselves in time", found.timed_out)
            self._end_at_once(found.timed_out, f"its release did not end within {timeout_s:g} s")
        was_released, self._is_released = self._is_released, all(map(self._is_over, self.engine.state.resources))
        if self.persist and self._is_released and not was_released:
            try:
                self.save()
            except FedmonError as error:
                logger.warning("the experiment was released, and could not be saved: %s", error)
        over = [self.get_resource(guid) for guid in chosen if guid in self and self._is_over(guid)]
        self._discard([resource.guid for resource in over if resource.get("hardRelease")])
        return found

    def _is_within(self) -> bool:
        """Tell whether the calling thread runs a hook or a task of the experiment."""
        return self.engine.hooks.is_mine() or any(hook.rm.ec is self for hook in here.hooks)

    def _end_at_once(self, guids: tuple[int, ...], reason: str) -> None:
        """Kill the work of resources, without grace, and set them RELEASED."""
        for guid in guids:
            with contextlib.suppress(UnknownGuidError):  # if it was removed at this moment
                _kill(self.get_resource(guid))
        self.engine.note(Became(guids=guids, state=ResourceState.RELEASED, reason=reason))

    def shutdown(self) -> None:
        """Cancel waits and tasks, release everything, and end; a second call is harmless.

        A second caller waits for the end. Hooks and tasks do not wait. An interrupt shortens the release, and is raised
        again at the end.
        """
        if self._is_within():
            threading.Thread(target=self.shutdown, name="fedmon-experiment-end", daemon=True).start()
            return
        with self._lock:
            is_second, self._is_ending = self._is_ending, True
        if is_second:
            self._ended.wait(self.release_timeout_s + 2 * CLOSE_S)
            return
        deadline = Deadline(self.release_timeout_s + CLOSE_S)
        self.engine.end_waits()
        self.tasks.drop()
        try:
            self.release()
        except KeyboardInterrupt:
            self.release_timeout_s = min(self.release_timeout_s, HURRY_S)
            self.release()
            raise
        finally:
            try:
                self._end(deadline)
            finally:
                self._ended.set()

    def _end(self, deadline: Deadline) -> None:
        left = tuple(guid for guid in self.resources if not self._is_over(guid))
        try:
            if left:
                self._end_at_once(left, "the experiment ended before its release did")
        finally:
            self._is_terminated = True
            self._close(timeout_s=min(CLOSE_S, deadline.left_s()))

    def _close(self, *, timeout_s: float) -> None:
        try:
            busy = self.engine.close(timeout_s=timeout_s)
            if busy and self._is_terminated:
                logger.warning("still running: %s of resources", plural(busy, "hook"))
        finally:
            with self._federation_lock:
                opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    def give_up(self) -> None:
        """Leave the run to another process: nothing is released, by a later `shutdown` either."""
        self._is_ending = True
        self._ended.set()
        self.engine.end_waits()
        self._close(timeout_s=0.0)

    def _is_over(self, guid: int) -> bool:
        seen = self.engine.state.resources.get(guid)
        return seen is None or seen.state is ResourceState.RELEASED

    # --- tasks, failures and metrics ----------------------------------------------------------------------------------

    def schedule(
        self,
        date: str | None,
        callback: Callable[[], Any],
        track: bool = False,  # noqa: FBT001, FBT002 - NEPI's signature
    ) -> int:
        """Call a function after a duration or at an absolute time; return the id of the task.

        A function of a module is called after a `reconnect`, too. Raises InvalidTimeError, InvalidTaskError, and
        ExperimentOverError after `shutdown`.
        """
        return self.tasks.add(date, callback, is_tracked=track)

    def get_task(self, tid: int) -> Task | None:
        """Return a task that was scheduled with ``track=True``, None for another one."""
        return self.tasks.tracked.get(tid)

    def inform_failure(self, guid: int | str) -> None:
        """Have the failure manager judge a resource that failed; for subclasses too. Raises UnknownGuidError."""
        failure.judge(self.fm, self.engine, self.get_resource(guid).guid)

    def _inform(self, guid: int) -> None:
        """Have a failure judged: by our own code at once, by a user's, which may block, in a thread."""
        is_own = type(self).inform_failure is ExperimentController.inform_failure

        def work() -> None:
            if is_own:
                failure.judge(self.fm, self.engine, guid)
                return
            try:
                self.inform_failure(guid)
            except BaseException:  # a user's code, which may even call sys.exit
                logger.exception("inform_failure failed; the failure is judged without it")
                failure.judge(self.fm, self.engine, guid)

        if is_own and type(self.fm).__module__ == failure.__name__:
            work()
        else:
            self.engine.run(work)

    def measured(self, guid: int | str, name: str, value: float, source: str = "", *, nth: int | None = None) -> None:
        """Report a metric of a resource to conditions, which count the values of each ``source`` by themselves.

        ``nth`` numbers the reports of a source. Raises UnknownGuidError, and InvalidConditionError
        for an invalid name or value.
        """
        known = self.get_resource(guid).guid
        if not (is_text(name) and (source == "" or is_text(source))):
            raise InvalidConditionError(f"{(name, source)!r:.80}: a metric and its source have texts for names")
        number = number_of(value, f"{name} of resource {guid}")
        self.engine.note(Measured(guid=known, name=name, value=number, source=source, nth=nth))

    def reports(self, guid: int) -> Reports:
        """Return the numbered reports of a resource that a former process of the run passed to conditions."""
        return self._reports.get(guid) or Reports()

    # --- documents, plans and explanations ----------------------------------------------------------------------------

    def describe(self) -> Description:
        """Return the description of the experiment as it is now."""
        state = self.engine.state
        return even(
            Description(
                exp_id=self.exp_id,
                run_id=self.run_id,
                max_running=self.max_running,
                local_dir=self.local_dir,
                persist=self.persist,
                topology=self._topology if self._netgraph is None else nepi("topology").describe(self._netgraph),
                failures=failure.policy_of(self.fm, state.resources),
                resources=resources_of(self.registry, state),
            )
        )

    def serialize(self, format: str = SFormats.XML) -> str:  # noqa: A002 - NEPI's name
        """Return the experiment as the text of a document. Raises InvalidInputError for an unknown format."""
        return text_in(checked_format(format), self.describe())

    def save(self, dirpath: str | Path | None = None, format: str = SFormats.XML) -> str:  # noqa: A002 - NEPI's name
        """Write the experiment into a folder, by default that of the run; return the path of the file.

        Credentials are masked. Raises InvalidInputError for an unknown format, and StorageError.
        """
        ending = checked_format(format).value
        folder = self._folder(dirpath)
        name = f"{self.exp_id}_{run_id_of(utc_now())[:14]}"
        # Several files of one second have different names.
        paths = (folder / f"{name}{f'_{number}' if number > 1 else ''}.{ending}" for number in range(1, 10**6))
        return str(write(self.describe(), next(path for path in paths if not path.exists())))

    def _folder(self, dirpath: str | Path | None) -> Path:
        """Return a caller's folder, or that of the run, which is made for its owner alone."""
        if dirpath is None:
            with storage_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.folder if dirpath is None else Path(dirpath)

    def plan(self) -> ExperimentPlan:
        """Return a dry run: the order of all steps, and all problems.

        Resources of a federation ask nodes for problems, which may take a moment; nothing is changed there.
        """
        return plan(self.engine.state, problems=self.registry.foreseen())

    def explain(self, guid: int | str) -> Explanation:
        """Return the reason of a resource's state: its waits, with their start and the time left.

        Raises UnknownGuidError.
        """
        resource, state = self.get_resource(guid), self.engine.state
        if resource.guid not in state.resources:  # registered or removed at this moment
            raise UnknownGuidError(f"resource {resource.guid} not found")
        found = explain(state, resource.guid, self.engine.now())
        if self.max_running and self.engine.hooks.is_waiting(resource.guid):
            verb = state.resources[resource.guid].calling
            return replace(found, reason=f"its {verb} waits for a hook to return: max_running is {self.max_running}")
        return found

    def plot(
        self,
        dirpath: str | Path | None = None,
        format: str = PFormats.FIGURE,  # noqa: A002 - NEPI's name
        show: bool = False,  # noqa: FBT001, FBT002 - NEPI's signature
    ) -> str:
        """Draw the experiment, with states and conditions, into a folder; return the path of the file."""
        folder, name = self._folder(dirpath), f"{self.exp_id}_{self.run_id}"
        return str(plot(picture_of(self.engine.state), folder, name, format=format, show=show))


def _kill(resource: ResourceManager) -> None:
    try:
        resource.end_at_once()
    except Exception:  # a type's code; the others must end, too
        logger.exception("resource %d could not be ended at once", resource.guid)


def _limit(max_running: int | None, nthreads: int | None) -> int | None:
    """Return how many hooks may run at once, None without limit. Raises InvalidExperimentError."""
    given = {"max_running": max_running, "nthreads": nthreads, "NEPI_NTHREADS": os.environ.get("NEPI_NTHREADS") or "0"}
    where, asked = next((name, str(value)) for name, value in given.items() if value is not None)
    if not asked.strip().isdecimal():
        raise InvalidExperimentError(f"{where} is {asked}: take a whole number from 1, or 0 for no limit")
    return int(asked) or None
