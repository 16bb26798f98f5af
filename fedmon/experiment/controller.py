"""`ExperimentController`: the face of an experiment, with the methods of NEPI's; each hands on to who knows."""

from __future__ import annotations

import datetime
import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from fedmon.common.clock import utc_now
from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.experiment import topology_document
from fedmon.experiment.attributes import Attribute
from fedmon.experiment.book import Book
from fedmon.experiment.check.diagram import PFormats, picture_of, plot
from fedmon.experiment.check.explain import Explanation, explain
from fedmon.experiment.check.plan import ExperimentPlan, plan
from fedmon.experiment.conditions import AnyCondition, Metric
from fedmon.experiment.describing import build, description_of, facts_of
from fedmon.experiment.document import Description, SFormats, read, to_toml, to_xml, write
from fedmon.experiment.document.description import Nid
from fedmon.experiment.doing import Doing
from fedmon.experiment.engine import Engine
from fedmon.experiment.errors import (
    ExperimentOverError,
    FederationUnreachableError,
    InvalidExperimentError,
    InvalidPolicyError,
)
from fedmon.experiment.events import (
    ActionWanted,
    AttributeSet,
    Became,
    Opened,
    Retry,
    Returned,
    TraceEnabled,
    Verb,
    VerbFailed,
)
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.failure import FailureManager, fresh_copy, keep_policy, manager_of, policy_left_in, policy_of
from fedmon.experiment.journal import NAME, Journal
from fedmon.experiment.life import Life
from fedmon.experiment.log_lines import logger_of
from fedmon.experiment.pool import MAX_THREADS
from fedmon.experiment.protocol import Guids
from fedmon.experiment.reconnecting import Left, left_in
from fedmon.experiment.resource import ResourceManager, nothing_of
from fedmon.experiment.run_folder import path_of, run_folder, run_id_of
from fedmon.experiment.scheduler import Task
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ECState, FailureLevel, ResourceAction, ResourceState, ResourceState2str
from fedmon.experiment.tasks import Tasks
from fedmon.experiment.templates import Template
from fedmon.experiment.topology import NetGraph
from fedmon.experiment.topology_document import build as build_topology
from fedmon.experiment.traces import Trace, TraceAttr
from fedmon.experiment.verbs import as_reason
from fedmon.experiment.waits import WaitResult
from fedmon.experiment.wiring import Wiring, guids_of

if TYPE_CHECKING:
    from fedmon.researcher.federation import Federation


class FederationLink:
    """Holds the federation; safe from any thread. Only one that was opened here is closed here."""

    def __init__(self, given: Federation | None) -> None:
        self._given = given
        self._opened: Federation | None = None
        self._is_over = False
        self._failed: list[FedmonError] = []
        self._lock = threading.Lock()

    @property
    def given(self) -> Federation | None:
        """The federation that was given; null where the settings say which it is."""
        return self._given

    def get(self) -> Federation:
        """Return the federation, opened from the settings where none was given.

        Raises ConnectionFailedError where there is no broker, FederationUnreachableError where another found that out
        while we waited for him, and ExperimentOverError after `close`.
        """
        if self._given is not None:
            return self._given
        before = len(self._failed)
        with self._lock:
            if len(self._failed) > before:  # one try, which takes its time, is enough for all who came meanwhile
                raise FederationUnreachableError(str(self._failed[-1])) from self._failed[-1]
            if self._is_over:
                raise ExperimentOverError("the experiment was shut down, and its federation closed")
            if self._opened is None:
                # Connecting is for experiments that need it: the frame itself runs without a broker.
                from fedmon.researcher.federation import Federation

                try:
                    self._opened = Federation().start()
                except FedmonError as error:
                    self._failed.append(error)
                    raise
            return self._opened

    def close(self) -> None:
        """Close what was opened here."""
        self._is_over = True  # for those who wait for the lock
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


LEVEL, COMPONENTS = "NEPI_LOGLEVEL", "NEPI_LOG"
PACKAGE = "fedmon.experiment"
_PARTS: Mapping[str, tuple[str, ...]] = {
    "experimentcontroller": ("controller", "doing", "engine", "failure", "life", "pool", "tasks"),
    "experimentrunner": ("runner",),
    "parallelrun": ("parallel",),
    "resourcefactory": ("factory",),
}


def set_levels(environment: Mapping[str, str]) -> None:
    """Set the levels that an environment names; where it names none, everything stays as the program has it.

    ``NEPI_LOGLEVEL`` is that of the whole package, INFO where only the other variable is there. With ``NEPI_LOG``,
    components with spaces between, it is theirs alone, and the rest tells errors: a component is a type of resources,
    or ExperimentController, ExperimentRunner, ParallelRun or ResourceFactory; ALL is the whole package. Where it is
    written is for the program to say, as ever. Raises InvalidExperimentError for what is no level.
    """
    named, components = environment.get(LEVEL, "").strip(), environment.get(COMPONENTS, "").split()
    if not named and not components:
        return
    known = logging.getLevelNamesMapping()
    level = known.get(named.upper() or "INFO")
    if level is None:
        raise InvalidExperimentError(f"{LEVEL} in the environment is {named!r}: take one of {', '.join(known)}")
    chosen = [] if "ALL" in map(str.upper, components) else components
    logging.getLogger(PACKAGE).setLevel(logging.ERROR if chosen else level)
    for component in chosen:
        for part in _PARTS.get(component.lower(), ()):
            logging.getLogger(f"{PACKAGE}.{part}").setLevel(level)
        if component.lower() not in _PARTS:
            logger_of(component).setLevel(level)


class ExperimentController:
    """Runs an experiment: registers resources, deploys them as their conditions say, waits, and releases all.

    A context manager, which always releases. Every method is safe from any thread; none blocks but `wait_*`, `release`
    and `shutdown`. The run's files lie in ``local_dir/exp_id/run_id``; ``journal=False`` keeps none.
    Resources of a federation use the one given, or one that is opened from the settings when the first needs it and
    closed at the end.
    """

    def __init__(
        self,
        exp_id: str | None = None,
        local_dir: str | Path | None = None,
        persist: bool = False,  # noqa: FBT001, FBT002 - NEPI's signature
        fm: FailureManager | None = None,
        add_node_callback: Callable[[Any, Nid], object] | None = None,
        add_edge_callback: Callable[[Any, Nid, Nid], object] | None = None,
        *,
        federation: Federation | None = None,
        journal: bool = True,
        nthreads: int | None = None,
        left: Left | None = None,
        **netgraph: Any,
    ) -> None:
        """Begin a run, or, by ``left``, take one up again; see `reconnect`.

        Further keywords are those of `NetGraph`; the callbacks are called for each of its nodes and edges.
        """
        opened = None if left is None else left.opened
        self.folder = run_folder(exp_id, local_dir) if left is None else left.folder
        self.persist = bool(persist if opened is None else opened.persist)
        self.is_journaled = journal
        self.nthreads = threads_asked(nthreads if opened is None else opened.threads)
        self.logger = logging.getLogger(__name__)
        set_levels(os.environ)
        self.fm = FailureManager() if fm is None else fm
        if not isinstance(self.fm, FailureManager):
            raise InvalidPolicyError(f"fm is {fm!r:.80}, and no FailureManager: derive a class, and give an instance")
        self._netgraph = topology_asked(netgraph)
        is_own = type(self).inform_failure is not ExperimentController.inform_failure
        self._doing = Doing(self.fm, informed=self.inform_failure if is_own else None)
        kept = Journal(self.folder.make() / NAME) if journal and left is None else None
        left = Left(folder=self.folder, journal=kept) if left is None else left
        self._engine = Engine(self._doing, left.journal, state=left.state, after=left.until, threads=self.nthreads)
        self._book = Book(self, self._engine)
        self._wiring = Wiring(self._book, self._engine, conditions=left.conditions)
        self._tasks = Tasks(self._engine)
        self._link = FederationLink(federation)
        self._life = Life(
            self, self._book, self._engine, heed=self._doing.heed, at_release=self._keep, at_end=self._link.close
        )
        self._doing.begin(self._book, self._engine)
        try:
            self.fm.set_ec(self)
            if opened is None:
                self._engine.post(Opened(t=self._engine.now(), persist=self.persist, threads=self.nthreads))
            self._book.take_up(left.state, highest=left.highest_guid, names=left.names)
            if self._netgraph is not None:
                call_back(self, self._netgraph, add_node_callback, add_edge_callback)
        except BaseException:  # nobody else has it, to end it
            if left.state.resources:
                self._give_up()
            else:
                self.shutdown()
            raise

    def _give_up(self) -> None:
        """Let others have the run as it is: nothing is released."""
        self._engine.stop()
        self._engine.close(timeout_s=0.0)
        self._link.close()

    @classmethod
    def reconnect(
        cls,
        run_dir: str | Path,
        *,
        fm: FailureManager | None = None,
        federation: Federation | None = None,
        attributes: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Self:
        """Take up again the run in a folder whose process died: nothing is done twice, and what goes on is adopted.

        ``attributes`` gives credentials again, by guid, which are never written down, and ``fm`` the failure manager,
        where that was given and comes from no document; what was judged before is not judged again. Raises StorageError
        where there is no journal, and FolderInUseError where the process lives.
        """
        left = left_in(run_dir)
        with left.held():
            made = cls(left=left, fm=policy_left_in(left.folder.run_dir) if fm is None else fm, federation=federation)
            try:
                for guid, values in (attributes or {}).items():
                    made.get_resource(guid).give(values)
                made._doing.take_up(left)
            except BaseException:
                made._give_up()
                raise
        return made

    @classmethod
    def load(
        cls,
        filepath: str | Path,
        format: str | None = None,  # noqa: A002 - NEPI's name
        *,
        nepi: int | None = None,
        local_dir: str | Path | None = None,
        fm: FailureManager | None = None,
        federation: Federation | None = None,
    ) -> Self:
        """Make a controller of a document of ours, or of NEPI 3 or 6, which ``nepi`` says where the file does not.

        Everything in it is NEW, and the run a new one. ``format`` is that of the file's ending where it is null;
        ``local_dir`` goes before the document's. Raises DescriptionError, NotFoundError, UnknownTypeError, and
        InvalidInputError for another format.
        """
        found = read(path_of("filepath", filepath), format=format, nepi=nepi)
        return cls.from_description(found, local_dir=local_dir, fm=fm, federation=federation)

    @classmethod
    def from_description(
        cls,
        description: Description,
        *,
        local_dir: str | Path | None = None,
        fm: FailureManager | None = None,
        federation: Federation | None = None,
        journal: bool = True,
        masked: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Self:
        """Make a controller of a description; ``masked`` are values that no document holds, by guid.

        Without ``fm`` failures mean what the description says. Raises what registering does, naming the resource.
        """
        made = cls(
            description.exp_id,
            description.local_dir if local_dir is None else local_dir,
            persist=description.persist,
            fm=manager_of(description.failures) if fm is None else fm,
            federation=federation,
            journal=journal,
            nthreads=description.nthreads,
        )
        try:
            if description.topology is not None:
                made._netgraph = build_topology(description.topology)
            build(description, made._book, made._wiring, masked=masked or {})
            if journal and description.failures is not None:
                keep_policy(made.describe(), made.folder.run_dir)
        except BaseException:
            made._life.shutdown()
            raise
        return made

    def repeats(self) -> Callable[[], Self]:
        """Return what makes controllers of the experiment as it stands now, everything in it NEW, one for each run.

        They have what no document holds, too: the class, the federation, credentials, whether there is a journal, and
        a copy of the failure manager. Raises InvalidPolicyError for one that cannot be copied.
        """
        description = self.describe()
        masked = {resource.guid: resource.masked_values() for resource in self._book.all()}
        fresh_copy(self.fm)  # so that one that cannot be is found before the first run
        return lambda: self.from_description(
            description,
            fm=fresh_copy(self.fm),
            federation=self._link.given,
            journal=self.is_journaled,
            masked=masked,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return (
            f"<ExperimentController {self.exp_id} {self.run_id}: {self.ecstate.name}, {len(self.resources)} resources>"
        )

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def exp_id(self) -> str:
        """The experiment's id."""
        return self.folder.exp_id

    @property
    def run_id(self) -> str:
        """The run's id: when it began, in 20 digits."""
        return self.folder.run_id

    @property
    def local_dir(self) -> str:
        """The folder of all experiments."""
        return str(self.folder.local_dir)

    @property
    def exp_dir(self) -> str:
        """The folder of this experiment."""
        return str(self.folder.exp_dir)

    @property
    def run_dir(self) -> str:
        """The folder of this run."""
        return str(self.folder.run_dir)

    @property
    def federation(self) -> Federation:
        """The federation that resources use; connects where that was not done. Raises ConnectionFailedError."""
        return self._link.get()

    @property
    def ecstate(self) -> ECState:
        """How the controller is."""
        self._doing.heed()
        return self._life.state

    @property
    def failure_level(self) -> FailureLevel:
        """How bad it is."""
        self._doing.heed()
        return self._engine.state.level

    @property
    def abort(self) -> bool:
        """Whether a failure ended all waiting."""
        self._doing.heed()
        return self._engine.state.is_aborted

    @property
    def snapshot(self) -> State:
        """Everything the machine knows, at this moment; it does not change."""
        return self._engine.state

    def _keep(self) -> None:
        if self.persist:
            self.save()

    @property
    def resources(self) -> list[int]:
        """The guids of all resources."""
        return self._book.guids

    def register_resource(
        self,
        rtype: str,
        guid: int | None = None,
        *,
        autoDeploy: bool = False,  # noqa: N803 - NEPI's name
        connectedTo: Guids | None = None,  # noqa: N803 - NEPI's name
        timeouts: Mapping[Verb, float] | None = None,
        retry: Mapping[Verb, Retry] | None = None,
        **attributes: Any,
    ) -> int:
        """Make a resource and return its guid; further keywords set attributes.

        Raises UnknownTypeError, DuplicateGuidError, InvalidAttributeValueError, and ExperimentAbortedError where it
        can be deployed no more; nothing is registered then.
        """
        if autoDeploy:
            self._life.check_deployable()
        else:
            self._life.check_open()
        others = () if connectedTo is None else guids_of(connectedTo)
        for other in others:
            self._book.get(other)
        number = self._book.register(rtype, guid, attributes=attributes, timeouts=timeouts, retry=retry)
        try:
            for other in others:
                self._wiring.connect(number, other)
            if autoDeploy:
                self._life.deploy(number, wait_all_ready=True, group=None)
        except BaseException:
            self._book.discard([number])
            raise
        return number

    def remove_resource(self, guid: int) -> None:
        """Take a resource out."""
        self._book.remove([guid])

    def get_resource(self, guid: int) -> ResourceManager:
        """Return a resource. Raises UnknownGuidError."""
        return self._book.get(guid)

    def get_resources_by_type(self, rtype: str) -> list[ResourceManager]:
        """Return the resources of exactly a type; `filter_resources` gives guids. Raises UnknownTypeError."""
        found = [resource for resource in self._book.all() if resource.get_rtype() == rtype]
        return found or nothing_of(rtype)

    def filter_resources(self, rtype: str | type[Template]) -> list[int]:
        """Return the guids of the resources of a type and of types derived from it. Raises UnknownTypeError."""
        found = self._book.where(lambda resource: resource.is_rm_instance(rtype))
        return found or nothing_of(rtype)

    def register_connection(self, guid1: int, guid2: int) -> None:
        """Connect two resources. Raises InvalidConnectionError naming the side that does not take it."""
        self._wiring.connect(guid1, guid2)

    def unregister_connection(self, guid1: int, guid2: int) -> None:
        """Take a connection away."""
        self._wiring.disconnect(guid1, guid2)

    def register_condition(
        self,
        guids1: Guids,
        action: ResourceAction,
        guids2: Guids,
        state: ResourceState | None = None,
        time: str | None = None,
        *,
        metric: Metric | None = None,
        at_least: int | None = None,
        timeout: str | None = None,
    ) -> AnyCondition:
        """Have an action of ``guids1`` wait for ``guids2`` to be at a state since ``time``, or for a metric of theirs.

        Raises InvalidConditionError, InvalidTimeError, UnknownGuidError.
        """
        return self._wiring.condition(
            guids1, action, guids2, state, time=time, metric=metric, at_least=at_least, timeout=timeout
        )

    def unregister_condition(self, guids1: Guids, guids2: Guids, action: ResourceAction | None = None) -> None:
        """Have ``guids1`` wait for ``guids2`` no longer."""
        self._wiring.free(guids1, guids2, action)

    def get_attributes(self, guid: int) -> list[Attribute]:
        """Return the attributes of a resource."""
        return self._book.get(guid).get_attributes_of_instance()

    def get_attribute(self, guid: int, name: str) -> Attribute:
        """Return one attribute of a resource."""
        return self._book.get(guid).get_attribute_of_instance(name)

    def get(self, guid: int, name: str) -> Any:
        """Return the value of an attribute."""
        return self._book.get(guid).get(name)

    def set(self, guid: int, name: str, value: Any) -> None:
        """Set an attribute. Raises InvalidAttributeValueError."""
        self._book.get(guid).set(name, value)

    def get_global(self, rtype: str, name: str) -> Any:
        """Return a global attribute of a type."""
        return ResourceFactory.get_resource_type(rtype).get_global(name)

    def set_global(self, rtype: str, name: str, value: Any) -> None:
        """Set a global attribute of a type."""
        ResourceFactory.get_resource_type(rtype).set_global(name, value)

    def set_with_conditions(
        self, name: str, value: Any, guids1: Guids, guids2: Guids, state: ResourceState, time: str | None = None
    ) -> None:
        """Set an attribute of ``guids1`` when ``guids2`` are at a state and they themselves STARTED."""
        self._wiring.set_when(guids1, name, value, guids2, state, time)

    def enable_trace(self, guid: int, name: str) -> None:
        """Have a trace kept."""
        self._book.get(guid).enable_trace(name)

    def trace_enabled(self, guid: int, name: str) -> bool:
        """Tell whether a trace is kept."""
        return self._book.get(guid).trace_enabled(name)

    def get_traces(self, guid: int) -> list[Trace]:
        """Return the traces of a resource."""
        return self._book.get(guid).get_traces_of_instance()

    def trace(self, guid: int, name: str, attr: TraceAttr = TraceAttr.ALL, block: int = 512, offset: int = 0) -> Any:
        """Return what a trace holds, a part of it, or where it lies."""
        return self._book.get(guid).trace(name, attr, block, offset)

    def state(self, guid: int, hr: bool = False) -> ResourceState | str:  # noqa: FBT001, FBT002 - NEPI's signature
        """Return the state of a resource; its name where ``hr`` is true."""
        found = self._book.get(guid).state
        return ResourceState2str[found] if hr else found

    def get_discover_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was DISCOVERED."""
        found: datetime.datetime | None = self._book.get(guid).discover_time
        return found

    def get_reserved_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was RESERVED."""
        found: datetime.datetime | None = self._book.get(guid).reserved_time
        return found

    def get_provision_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was PROVISIONED."""
        found: datetime.datetime | None = self._book.get(guid).provision_time
        return found

    def get_ready_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was READY."""
        found: datetime.datetime | None = self._book.get(guid).ready_time
        return found

    def get_start_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was STARTED."""
        found: datetime.datetime | None = self._book.get(guid).start_time
        return found

    def get_stop_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was STOPPED."""
        found: datetime.datetime | None = self._book.get(guid).stop_time
        return found

    def get_failed_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource FAILED."""
        found: datetime.datetime | None = self._book.get(guid).failed_time
        return found

    def get_release_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was RELEASED."""
        found: datetime.datetime | None = self._book.get(guid).release_time
        return found

    def discover(self, guid: int) -> None:
        """Discover a resource."""
        self._book.get(guid).discover()

    def reserve(self, guid: int) -> None:
        """Reserve a resource."""
        self._book.get(guid).reserve()

    def provision(self, guid: int) -> None:
        """Provision a resource."""
        self._book.get(guid).provision()

    def start(self, guid: int) -> None:
        """Start a resource."""
        self._book.get(guid).start()

    def stop(self, guid: int) -> None:
        """Stop a resource."""
        self._book.get(guid).stop()

    def deploy(
        self,
        guids: Guids | None = None,
        wait_all_ready: bool = True,  # noqa: FBT001, FBT002 - NEPI's signature
        group: int | None = None,
    ) -> int:
        """Have resources deployed and started as their conditions say; all NEW ones where ``guids`` is null.

        Returns the id of their group. Raises ImpossiblePlanError naming what can never come, and ExperimentAbortedError
        once a failure ended the experiment.
        """
        return self._life.deploy(guids, wait_all_ready=wait_all_ready, group=group)

    def release(self, guids: Guids | None = None) -> WaitResult:
        """Release resources, all where ``guids`` is null, and wait for it."""
        return self._life.release(guids)

    def shutdown(self) -> None:
        """Drop what was put off, release everything, and end."""
        self._life.shutdown()

    def wait(
        self,
        guids: Guids,
        state: ResourceState,
        quit: Callable[[], object] | None = None,  # noqa: A002 - NEPI's name
        *,
        timeout: float | None = None,
    ) -> WaitResult:
        """Wait until resources are at a state at least, or ``quit()`` is true; ``timeout`` in seconds."""
        return self._life.wait(guids, state, timeout, quit)

    def wait_deployed(self, guids: Guids, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources are READY at least."""
        return self._life.wait(guids, ResourceState.READY, timeout)

    def wait_started(self, guids: Guids, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources are STARTED at least."""
        return self._life.wait(guids, ResourceState.STARTED, timeout)

    def wait_finished(self, guids: Guids, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources are STOPPED at least."""
        return self._life.wait(guids, ResourceState.STOPPED, timeout)

    def wait_released(self, guids: Guids, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources are RELEASED."""
        return self._life.wait(guids, ResourceState.RELEASED, timeout)

    def schedule(
        self,
        date: str | None,
        callback: Callable[[], Any],
        track: bool = False,  # noqa: FBT001, FBT002 - NEPI's signature
    ) -> int:
        """Have a callback run after a duration or at an absolute time; return the task's id.

        Raises InvalidTimeError, InvalidTaskError, and ExperimentOverError after `shutdown`.
        """
        return self._tasks.schedule(date, callback, is_tracked=track)

    def get_task(self, tid: int) -> Task:
        """Return a tracked task. Raises UnknownTaskError."""
        return self._tasks.get(tid)

    @property
    def netgraph(self) -> NetGraph | None:
        """The topology that the experiment was made from; null where it was made from none."""
        return self._netgraph

    def describe(self) -> Description:
        """Return the experiment as it stands."""
        return description_of(
            self._book,
            self._engine.state,
            self.folder,
            nthreads=self.nthreads,
            persist=self.persist,
            topology=None if self._netgraph is None else topology_document.describe(self._netgraph),
            failures=policy_of(self.fm, self._engine.state.resources),
        )

    def serialize(self, format: str = SFormats.XML) -> str:  # noqa: A002 - NEPI's name
        """Return the experiment as the text of a document. Raises InvalidInputError for another format."""
        return to_xml(self.describe()) if _checked(format) is SFormats.XML else to_toml(self.describe())

    def save(self, dirpath: str | Path | None = None, format: str = SFormats.XML) -> str:  # noqa: A002 - NEPI's name
        """Write the experiment into a folder, the run's where it is null, and return the path of the file.

        Credentials are masked. Raises InvalidInputError for another format, and StorageError.
        """
        ending = _checked(format).value
        folder = self.folder.make() if dirpath is None else Path(dirpath)
        name = f"{self.folder.exp_id}_{run_id_of(utc_now())[:14]}"
        return str(write(self.describe(), _free(folder, name, ending)))

    def plan(self) -> ExperimentPlan:
        """Return a dry run: what would happen in which order, and what never can.

        Resources of a federation ask nodes what stands in their way, which may take a moment; nothing is changed there.
        """
        state = self._engine.state
        return plan(state, facts_of(self._book, state))

    def explain(self, guid: int) -> Explanation:
        """Return why a resource is as it is: whom it waits for, since when, and how long still."""
        resource = self._book.get(guid)
        found = explain(self._engine.state, resource.guid, self._engine.now())
        own = getattr(resource, "waits_for", "")
        return replace(found, reason=f"{found.reason}; it waits for {own}") if own else found

    def plot(
        self,
        dirpath: str | Path | None = None,
        format: str = PFormats.FIGURE,  # noqa: A002 - NEPI's name
        show: bool = False,  # noqa: FBT001, FBT002 - NEPI's signature
    ) -> str:
        """Draw the experiment, with states and conditions, into a folder, and return the path of the file."""
        folder = self.folder.make() if dirpath is None else Path(dirpath)
        picture = picture_of(self._engine.state, names=self._book.names)
        name = f"{self.folder.exp_id}_{self.folder.run_id}"
        return str(plot(picture, folder, name, format=format, show=show))

    def inform_failure(self, guid: int) -> None:
        """Have the failure manager look at a resource that failed; it is told of each that does. For subclasses, too.

        Raises UnknownGuidError.
        """
        self._doing.look_at(self._book.get(guid).guid)

    def measured(self, guid: int, name: str, value: float, source: str = "", *, nth: int | None = None) -> None:
        """Hand over a value that conditions may ask for; ``source`` tells apart whose it is where there are several.

        ``nth`` is which one of that source it is, for who wants to know later which were handed over.
        Raises UnknownGuidError, and InvalidConditionError for a name that is no text and a value that is no number.
        """
        self._wiring.measured(guid, name, value, source, nth)

    def _seen(self, guid: int) -> Resource:
        return self._engine.state.resources[guid]

    def _became(self, guid: int, state: ResourceState, reason: str = "") -> None:
        reason = as_reason(reason) if reason else ""
        self._engine.note(Became(t=self._engine.now(), guids=(guid,), state=state, reason=reason))

    def _returned(self, guid: int, state: ResourceState) -> None:
        self._engine.note(Returned(t=self._engine.now(), guid=guid, state=state))

    def _verb_failed(self, guid: int, verb: Verb, reason: str) -> None:
        self._engine.note(VerbFailed(t=self._engine.now(), guid=guid, verb=verb, reason=reason))

    def _failure_judged(self) -> None:
        self._doing.heed()

    def _attribute_set(self, guid: int, name: str, value: Any) -> None:
        self._engine.post(AttributeSet(t=self._engine.now(), guid=guid, name=name, value=value))

    def _trace_enabled(self, guid: int, name: str) -> None:
        self._engine.post(TraceEnabled(t=self._engine.now(), guid=guid, name=name))

    def _action_wanted(self, guid: int, action: ResourceAction) -> None:
        self._engine.post(ActionWanted(t=self._engine.now(), guid=guid, action=action))


def _free(folder: Path, name: str, ending: str) -> Path:
    """Return a path that no file has: a second file of one second is another state, and leaves the first one."""
    path, number = folder / f"{name}.{ending}", 1
    while path.exists():
        number += 1
        path = folder / f"{name}_{number}.{ending}"
    return path


def _checked(format: str) -> SFormats:  # noqa: A002 - NEPI's name
    """Return a format of documents by its name. Raises InvalidInputError for another."""
    if format not in list(SFormats):
        raise InvalidInputError(f"no documents of the format {format!r}; one of: {', '.join(SFormats)}")
    return SFormats(format)


def topology_asked(options: Mapping[str, Any]) -> NetGraph | None:
    """Return the topology that keywords ask for. Raises InvalidExperimentError for a keyword that nobody knows."""
    if not options:
        return None
    known = list(inspect.signature(NetGraph).parameters)
    for name in options:
        if name not in known:
            raise InvalidExperimentError(f"there is no keyword {name!r}: those of a topology are {', '.join(known)}")
    return NetGraph(**options)


def call_back(
    ec: object,
    netgraph: NetGraph,
    add_node: Callable[[Any, Nid], object] | None,
    add_edge: Callable[[Any, Nid, Nid], object] | None,
) -> None:
    """Call back for each node, and then for each edge."""
    if add_node is not None:
        for nid in netgraph.nodes():
            add_node(ec, nid)
    if add_edge is not None:
        for nid1, nid2 in netgraph.edges():
            add_edge(ec, nid1, nid2)


def threads_asked(given: object) -> int:
    """Return how many threads there may be; null: as the environment says. Raises InvalidExperimentError."""
    where = "nthreads" if given is not None else "NEPI_NTHREADS in the environment"
    asked = os.environ.get("NEPI_NTHREADS", MAX_THREADS) if given is None else given
    try:
        number = int(str(asked))
    except ValueError:
        number = -1
    if number < 0:
        raise InvalidExperimentError(f"{where} is {asked!r}: take a whole number from 1, or 0 for {MAX_THREADS}")
    return number or MAX_THREADS
