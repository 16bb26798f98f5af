"""`fedmon::Job`: one run of an approved plan on nodes, from its start there to the results of all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.ids import NodeId, new_id
from fedmon.common.wire.runs import JobState
from fedmon.experiment.attributes import Attribute, Flags, Types
from fedmon.experiment.events import AttributeSet, Measured
from fedmon.experiment.journal import NAME, read_journal
from fedmon.experiment.natures import Need
from fedmon.experiment.resource import Experiment, ResourceManager, clsinit_copy
from fedmon.experiment.states import ResourceState
from fedmon.experiment.traces import Trace
from fedmon.experiment.types import job_files
from fedmon.experiment.types.dataset import Dataset
from fedmon.experiment.types.errors import JobFailedError, MissingPartError
from fedmon.experiment.types.job_files import read_inputs
from fedmon.experiment.types.linked import ASK_TIMEOUT_S, LinkedResource
from fedmon.experiment.types.node import Node, is_gone
from fedmon.experiment.types.training_plan import TrainingPlanResource
from fedmon.experiment.types.values import CheckedAttribute, inputs, json_object, limits, own, words

if TYPE_CHECKING:
    from fedmon.researcher.roster import Node as SeenNode
    from fedmon.researcher.runs.handle import RunHandle, Values
    from fedmon.researcher.session.callbacks import Subscription


Told = tuple[str, int, str]
"""Of which node, its how manieth report, and the name of the number."""


class Reported:
    """Hands on the numbers of one job; safe from any thread. Those in ``before`` another process has handed on."""

    def __init__(
        self, tell: Callable[[str, int, dict[str, float]], None], before: Collection[Told] = frozenset()
    ) -> None:
        self._tell, self._before = tell, before
        self._taken: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def take(self, node_id: str, number: int, values: Mapping[str, float | None]) -> None:
        """Take one report; when this returns, conditions know of it."""
        with self._lock:  # held while they are told: who comes second may say that all is told
            if (node_id, number) in self._taken:
                return
            self._taken.add((node_id, number))
            self._tell(
                node_id,
                number,
                {
                    name: value
                    for name, value in values.items()
                    if value is not None and (node_id, number, name) not in self._before
                },
            )


def told_before(run_dir: str | Path, guid: int) -> frozenset[Told]:
    """Return what the journal of a run says was told of a job since it was started last.

    Raises StorageError where it cannot be read.
    """
    found: set[Told] = set()
    path = Path(run_dir) / NAME
    for event in read_journal(path) if path.exists() else ():
        if isinstance(event, AttributeSet) and event.guid == guid and event.name == "jobId":
            found.clear()
        elif isinstance(event, Measured) and event.guid == guid and event.nth is not None:
            found.add((event.source, event.nth, event.name))
    return frozenset(found)


def inputs_of(name: str, given: str | Mapping[str, Any] | None, source: ResourceManager | None) -> dict[str, Any]:
    """Return the inputs of the job called ``name``: those ``given``, or in the file of that path, and of ``source``.

    Raises MissingPartError where the source has no result yet, InvalidInputError and StorageError.
    """
    values = read_inputs(Path(given)) if isinstance(given, str) else dict(given or {})
    if source is not None:
        result = getattr(source, "result", None)
        if not isinstance(result, Mapping):
            raise MissingPartError(
                name,
                f"result in {source.name} to begin with",
                "have it wait for a fedmon::Aggregator to be STOPPED",
            )
        values.update(result)
    return values


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: whether well, and where it did not, node by node; "" where it did everywhere."""

    is_well: bool
    outcome: str
    failed: str = ""


class FollowedRun:
    """Calls back when nothing more will come, of other nodes than those that were lost; safe from any thread.

    ``reported`` gets each number that the plan tells.
    """

    def __init__(self, handle: RunHandle, reported: Reported, on_over: Callable[[], object]) -> None:
        self.handle, self._reported, self._on_over = handle, reported, on_over
        self._lost: frozenset[NodeId] = frozenset()
        self._subscriptions: tuple[Subscription, ...] = ()

    def begin(self) -> None:
        """Begin to listen; what is here already is told at once."""
        self._subscriptions = (
            self.handle.on_scalar(lambda one: self._reported.take(one.node_id, one.number, one.values)),
            self.handle.on_over(self._on_over),
        )

    def end(self) -> None:
        """Listen no more."""
        for subscription in self._subscriptions:
            subscription.remove()

    def lose(self, node_id: NodeId) -> None:
        """Wait no longer for a node."""
        self._lost |= {node_id}
        self._subscriptions += (self.when_over(self._on_over),)

    def when_over(self, callback: Callable[[], object]) -> Subscription:
        """Call back once, when nothing more will come but of lost nodes."""
        return self.handle.on_over(callback, without=sorted(self._lost))

    @property
    def waits_for(self) -> list[NodeId]:
        """The nodes on which it goes on, but for those that were lost."""
        return sorted(node_id for node_id in self._going() if node_id not in self._lost)

    def _going(self) -> list[NodeId]:
        return [node_id for node_id, part in self.handle.states().items() if not part.is_over]

    def tell_rest(self) -> None:
        """Hand over the numbers that are here and were not handed over yet; those that come are handed over later."""
        for node_id, scalars in self.handle.scalars.items():
            for one in scalars:
                self._reported.take(node_id, one.number, one.values)

    def ending(self, *, at_least: int | None, is_stopping: bool, forgives_lost: bool = False) -> Ending:
        """Return how it ended; well, where it did on ``at_least`` nodes, null: on all, or was to stop and did.

        With ``forgives_lost`` a node that was lost counts as one where it stopped.
        """
        lost = {str(node_id): "the node was lost while it ran there" for node_id in self._going()}
        failed = self.handle.failures() | lost
        succeeded = [node_id for node_id in self.handle.nodes if node_id not in failed]
        stopped = [*self._stopped(), *(lost if forgives_lost else ())] if is_stopping else []
        return ending_of(succeeded, failed, stopped, at_least=at_least)

    def _stopped(self) -> list[str]:
        parts = self.handle.states().items()
        return [str(node_id) for node_id, part in parts if part.job is not None and part.job.state is JobState.STOPPED]


def ending_of(
    succeeded: Collection[str], failed: dict[str, str], stopped: Collection[str], *, at_least: int | None
) -> Ending:
    """Judge a run by where it succeeded, why not elsewhere, and where it stopped for it was told to."""
    said = "; ".join(f"{node_id}: {reason}" for node_id, reason in sorted(failed.items()))
    if not failed:
        is_well = at_least is None or len(succeeded) >= at_least
        short = "" if is_well else f"it ran on {len(succeeded)} nodes, and atLeast is {at_least}"
        return Ending(is_well=is_well, outcome=short or "succeeded on every node", failed=short)
    if all(node_id in stopped for node_id in failed):
        return Ending(is_well=True, outcome=said)
    is_well = at_least is not None and len(succeeded) >= at_least
    return Ending(
        is_well=is_well,
        outcome=f"succeeded on {', '.join(sorted(succeeded))}; {said}" if is_well else said,
        failed=said,
    )


_STOP_TIMEOUT_S = 5.0
_END_PATIENCE = "10s"
"""For what nodes say of the end of a run that was stopped by its release."""
_OBJECT = 'a JSON object, such as {"rounds": 3}'


@clsinit_copy
class Job(LinkedResource):
    """STARTED while the plan runs, STOPPED when it ended well on every node, FAILED with what happened where not.

    With ``atLeast`` it is STOPPED when it ended well on so many, with the results of those.
    Connected to a plan; to nodes or datasets, or it runs where its plan was approved. Numbers that the plan reports
    reach conditions under its guid. Nodes that failed before it starts are left out unless they are critical; one that
    fails while it runs fails its part. ``jobId`` is kept before anything is asked, so that `adopt` finds the run again.
    """

    _rtype = "fedmon::Job"
    _help = "A run of an approved plan: STOPPED when it ended well on all nodes, FAILED with what happened otherwise."
    _partners = (
        "fedmon::TrainingPlan", "fedmon::Node", "fedmon::Dataset", "fedmon::Aggregator", "fedmon::Monitor",
        "fedmon::Collector",
    )  # fmt: skip
    _once = ("fedmon::TrainingPlan", "fedmon::Dataset")
    _needs = (
        *(Need(verb="deploy", of=rtype) for rtype in ("fedmon::Node", "fedmon::Dataset", "fedmon::TrainingPlan")),
        Need(verb="start", attribute="inputsFrom", state=ResourceState.STOPPED),
    )
    asks_federation = True
    _ends_itself = True
    _passes = ()
    _required_connections = (("fedmon::TrainingPlan",),)

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self._followed: FollowedRun | None = None
        self._is_stopping = self._is_given_back = self._is_releasing = self._hears = False
        self._starting = ""
        self._may_have_begun = False

    @classmethod
    def _register_attributes(cls) -> None:
        for attribute in (
            CheckedAttribute("args", "What the plan finds in context.arguments.", json_object, _OBJECT),
            CheckedAttribute(
                "inputs",
                "What the plan finds in context.inputs.",
                inputs,
                f"{_OBJECT}, or the path of a .json or .npz file, which may hold arrays",
            ),
            Attribute(
                "inputsFrom", "The guid of a fedmon::Aggregator whose result is added to the inputs.", Types.Integer
            ),
            CheckedAttribute(
                "limits",
                "What it may take at most; nodes lower that to their own limits.",
                limits,
                'a JSON object, such as {"wall_s": 60}',
            ),
            CheckedAttribute(
                "tags",
                "The tags of the dataset, where no fedmon::Dataset is connected.",
                words,
                "a list of texts",
                flags=Flags.Design,
            ),
            Attribute(
                "atLeast",
                "On how many of its nodes it must end well for it to be STOPPED; null: on all.",
                Types.Integer,
                Flags.Design,
                range=(1, 100_000),
            ),
            own("jobId", "The id under which nodes know it, once it was started."),
            own("ranOn", "The nodes that were asked to run it, with commas."),
            own("outcome", "How it ended, node by node."),
        ):
            cls._register_attribute(attribute)

    @classmethod
    def _register_traces(cls) -> None:
        for trace in (
            Trace("stdout", "What the plan printed, where the owners let that leave."),
            Trace("stderr", "What the plan printed to its standard error, where the owners let that leave."),
            Trace("result", "What the plan returned, as JSON by node; arrays by type, shape and, if few, elements."),
            Trace("scalars", "What the plan reported, a line of JSON each."),
        ):
            cls._register_trace(trace)

    # --- what it needs ------------------------------------------------------------------------------------------------

    def do_deploy(self) -> None:
        """Be READY when its plan, its nodes and its dataset are."""
        if not self.linked(TrainingPlanResource):
            raise MissingPartError(self.name, "plan", "connect it to a fedmon::TrainingPlan")
        if isinstance(self.get("inputs"), str):
            self.fixed_path("inputs")
        for kind in (Node, Dataset, TrainingPlanResource):
            if self.ready(kind) is None:
                return
        super().do_deploy()

    def neighbour_moved(self, other: LinkedResource) -> None:
        """Look again; a plan asks the owners of our nodes, and cannot see those by itself."""
        super().neighbour_moved(other)
        if isinstance(other, Node | Dataset):
            for plan in self.linked(TrainingPlanResource):
                plan.neighbour_moved(self)
        if isinstance(other, Node) and other.state is ResourceState.FAILED:
            self.later(lambda: self._look_at(other))

    def _nodes(self) -> list[NodeId] | None:
        """Return where it runs; null for wherever it can."""
        found = [node.node_id for node in self.linked(Node) if node.state < ResourceState.FAILED]
        for dataset in () if found else self.linked(Dataset):
            found += dataset.found_on
        for plan in () if found else self.linked(TrainingPlanResource):
            found += plan.approved_by
        return found or None

    def _inputs(self) -> dict[str, Any]:
        source = self.get("inputsFrom")
        given = self.fixed_path("inputs") if isinstance(self.get("inputs"), str) else self.get("inputs")
        return inputs_of(self.name, given, None if source is None else self.ec.get_resource(source))

    # --- running ------------------------------------------------------------------------------------------------------

    def do_start(self) -> None:
        """Ask the nodes to run the plan, once they are there; how it ends comes by itself."""
        self._starting, self._may_have_begun = new_id(), False
        self._start_when_there()

    def _run_as(self, job_id: str) -> None:
        nodes, at_least = self._nodes(), self.get("atLeast")
        if at_least is not None and nodes is not None and len(nodes) < at_least:
            raise JobFailedError(f"atLeast is {at_least}, and there are {len(nodes)} nodes: {', '.join(nodes)}")
        plan = self.linked(TrainingPlanResource)[0]
        datasets = self.linked(Dataset)
        dataset_id = datasets[0].get("datasetId") if datasets else None
        tags = datasets[0].get("tags") if datasets else self.get("tags")
        values = self._inputs()
        self._set_own("jobId", job_id)  # before anybody is asked: after a crash it says what to look for
        if self.get("outcome") is not None:  # of an earlier run
            self._set_own("outcome", None)
        self._is_stopping = False
        handle = self.federation.run(
            f"sha256:{plan.get('sha256')}",
            nodes=nodes,
            tags=None if dataset_id else tags,
            dataset=dataset_id,
            args=self.get("args"),
            inputs=values or None,
            limits=self.get("limits"),
            job_id=job_id,
            timeout_s=ASK_TIMEOUT_S,
        )
        self._set_own("ranOn", ",".join(handle.nodes))
        if self.state >= ResourceState.FAILED:  # it was released while nodes were asked
            handle.stop(timeout_s=_STOP_TIMEOUT_S)
            return
        if all(part.job is None and part.is_over for part in handle.states().values()):
            said = "; ".join(f"{node_id}: {part.sentence()}" for node_id, part in handle.states().items())
            raise JobFailedError(f"no node took it: {said}")
        self.set_started()
        self._follow(handle)

    def adopt(self) -> bool:
        """Take up the run of ``jobId``, also one that another process began; false where no node knows it."""
        handle = self._found()
        if handle is None:
            return False
        handle.expect(self.ran_on)  # also those that know it no more: that is how it ended there
        if self.state < ResourceState.STARTED:
            self.set_started()
        self._follow(handle, told_before(self.ec.run_dir, self.guid))
        return True

    def _found(self) -> RunHandle | None:
        from fedmon.researcher.runs.errors import RunNotKnownError

        job_id = self.get("jobId")
        try:
            return self.federation.job(job_id, nodes=self.ran_on or None, expected=self.ran_on) if job_id else None
        except RunNotKnownError:
            return None

    def do_reconnect(self, verb: str | None) -> None:
        """Take up the run. One that was about to start is asked for under its id, so that no node starts it twice."""
        if verb == "start" and self.get("jobId") and self.get("outcome") is None:
            self._starting, self._may_have_begun = self.get("jobId"), True
            self._start_when_there()
        elif verb in (None, "stop") and self.state is ResourceState.STARTED:
            if not self.adopt():
                raise JobFailedError(f"no node that answers knows job {self.get('jobId')}")
            super().do_reconnect(verb)
        else:
            super().do_reconnect(verb)

    def _heard(self, node: SeenNode) -> None:
        if self._starting and not is_gone(node):
            self.later(self._start_when_there)

    def _start_when_there(self) -> None:
        """Have it run as soon as no node is away of which it is expected, or that may have begun it."""
        if not self._hears:
            self._hears = True
            self.listen("presence", self._heard)  # before the look, so that none is missed
        away = self._away()
        with self.lock:
            job_id = "" if away or self.state >= ResourceState.FAILED else self._starting
            if not away:
                self._starting = ""
        if job_id:
            self._run_as(job_id)
        elif away and self._starting:
            self.wait_for(f"node {', '.join(away)} to be there")

    def _away(self) -> list[NodeId]:
        seen, around = self.federation.nodes(), self._nodes_around()
        failed = {node.get("nodeId") for node in around if node.state >= ResourceState.FAILED}
        awaited = {node.get("nodeId") for node in around} - failed
        return [
            node_id
            for node_id in self._nodes() or ()
            if is_gone(seen.get(node_id)) and (node_id in awaited or (self._may_have_begun and node_id not in failed))
        ]

    # --- following ----------------------------------------------------------------------------------------------------

    def _follow(self, handle: RunHandle, before: Collection[Told] = frozenset()) -> None:
        def tell(node_id: str, nth: int, values: dict[str, float]) -> None:
            self.tell_metrics(self.guid, values, source=node_id, nth=nth)

        if self._followed is not None:
            self._followed.end()
        self._followed = FollowedRun(handle, Reported(tell, before), lambda: self.later(self._over))
        self._followed.begin()
        for node in self._nodes_around():  # who failed before anybody listened
            self._look_at(node)

    def deafen(self) -> None:
        """Listen no more, to the run neither."""
        super().deafen()
        if self._followed is not None:
            self._followed.end()

    def _nodes_around(self) -> list[Node]:
        """Return the nodes that it is connected to, or that its dataset or its plan are."""
        near: list[LinkedResource] = [self, *self.linked(Dataset), *self.linked(TrainingPlanResource)]
        return [node for each in near for node in each.linked(Node)]

    def _look_at(self, node: Node) -> None:
        """Wait no longer for a node that failed; the job goes on where there are others."""
        run = self._followed
        if run is not None and node.state is ResourceState.FAILED and node.get("nodeId") in self.ran_on:
            run.lose(node.node_id)
        if self._starting and node.state is ResourceState.FAILED:
            self._start_when_there()

    def _over(self) -> None:
        """Say how it ended, once nothing more will come; who gives it back does not ask that lost nodes stopped."""
        run = self._followed
        if run is None or self.state is not ResourceState.STARTED:
            return
        if run.waits_for:
            if run.handle.closed:
                self.fail(f"{run.handle.closed} while it ran on {', '.join(run.waits_for)} (job {run.handle.job_id})")
            return
        run.tell_rest()  # who is STOPPED tells nothing more
        ending = run.ending(
            at_least=self.get("atLeast"), is_stopping=self._is_stopping, forgives_lost=self._is_given_back
        )
        job_files.write_result(self.folder, run.handle.results())
        job_files.write_scalars(self.folder, run.handle.scalars)
        self._keep_traces()
        with self.lock:
            if self._followed is not run or self.state is not ResourceState.STARTED:
                return
            self._note_own("outcome", ending.outcome)
            if ending.is_well:
                self.set_stopped()
        if not ending.is_well:
            self.fail(ending.failed)
        elif ending.failed:
            self.warning(f"ended well, but not everywhere: {ending.failed}")

    def _keep_traces(self) -> None:
        """Keep what was printed where somebody wants it, as nodes forget it."""
        for name in ("stdout", "stderr"):
            if self.trace_enabled(name):
                try:
                    self.written(name)
                except FedmonError as error:
                    self.warning(f"{name} cannot be kept: {error}")

    # --- what came of it ----------------------------------------------------------------------------------------------

    @property
    def handle(self) -> RunHandle | None:
        """Its run; null before it was started or taken up."""
        return None if self._followed is None else self._followed.handle

    @property
    def ran_on(self) -> list[NodeId]:
        """The nodes that were asked to run it."""
        return [NodeId(node_id) for node_id in (self.get("ranOn") or "").split(",") if node_id]

    @property
    def results(self) -> Values:
        """What it returned, by node: of the nodes that succeeded so far."""
        if self.handle is not None:
            return self.handle.results()
        return job_files.saved_values(self.folder / "returned") if self.state >= ResourceState.STOPPED else {}

    def written(self, name: str) -> Path:
        """Return the file of a trace, fetched where it may have changed."""
        path = super().written(name)
        handle = self.handle
        if handle is not None and (not path.exists() or self.state is ResourceState.STARTED):
            job_files.fetch(self.folder, path, handle, name)
        return path

    # --- the end ------------------------------------------------------------------------------------------------------

    def do_stop(self) -> None:
        """Ask the nodes to end it; it is STOPPED when they say so."""
        self._is_stopping = True
        if self.handle is not None:
            self.handle.stop()

    def do_release(self) -> None:
        """End what runs; it is RELEASED when nodes say how it ended, or have not said so in time."""
        self._is_releasing = self._is_given_back = True
        run, is_running = self._followed, self.state is ResourceState.STARTED
        self._quietly(self.end_work)
        if run is None or not is_running:
            self.finish_release()
            return
        run.when_over(lambda: self.later(self.finish_release))
        self.later(self.finish_release, after=_END_PATIENCE)

    def finish_release(self) -> None:
        """Take how it ended, and release it, once."""
        with self.lock:
            is_first, self._is_releasing = self._is_releasing, False
        if is_first:
            self._over()
            super().finish_release()

    def end_work(self) -> None:
        """End what runs on nodes."""
        self._is_stopping, self._starting = True, ""
        handle, is_failed = self.handle, self.state is ResourceState.FAILED
        if handle is None and self.get("jobId") and (is_failed or self.get("outcome") is None):
            handle = self._found()  # what another process left running, or a start that is not through
        if handle is not None and not handle.closed and not all(part.is_over for part in handle.states().values()):
            handle.stop(timeout_s=_STOP_TIMEOUT_S)
