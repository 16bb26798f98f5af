"""`fedmon::Job`: one run of an approved plan on nodes, from its start there to the results of all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.files import write_whole
from fedmon.common.ids import NodeId, new_id
from fedmon.common.wire.runs import JobState
from fedmon.experiment.attributes import Flags, Trace, Types, typed
from fedmon.experiment.check.graph import Problem
from fedmon.experiment.errors import TraceNotReadableError, UnknownGuidError
from fedmon.experiment.journal import Reports
from fedmon.experiment.natures import Need
from fedmon.experiment.resource import Experiment
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.base import ASK_TIMEOUT_S, LinkedResource, ResourceFailedError, is_gone
from fedmon.experiment.types.node import Dataset, Node, missing_dataset
from fedmon.experiment.types.training_plan import TrainingPlanResource
from fedmon.experiment.types.values import CheckedAttribute, at_least, inputs, json_object, own, words
from fedmon.plan import parcels
from fedmon.researcher.asking.outcome import SILENT
from fedmon.researcher.asking.tables import by_reason
from fedmon.researcher.cli import run_values

if TYPE_CHECKING:
    from fedmon.researcher.runs.handle import RunHandle, Values

_STOP_TIMEOUT_S = 5.0
_END_PATIENCE = "10s"
"""How long a release waits for nodes to report how the run ended."""
_EVERYWHERE = "succeeded on every node"
_OBJECT = 'a JSON object, such as {"rounds": 3}'


def ending_of(
    succeeded: Collection[str], failed: Mapping[str, str], stopped: Collection[str], *, at_least: int | None
) -> tuple[bool, str]:
    """Tell whether a run ended well, and how: nodes where it succeeded, failed (with the reason), or was stopped."""
    is_well = len(succeeded) >= at_least if at_least is not None else not failed
    if not failed:
        return is_well, _EVERYWHERE if is_well else f"it ran on {len(succeeded)} nodes, and atLeast is {at_least}"
    said = "; ".join(by_reason(dict(sorted(failed.items()))))
    if all(node_id in stopped for node_id in failed):
        return True, said
    return is_well, f"succeeded on {', '.join(sorted(succeeded))}; {said}" if is_well else said


def _limits(value: Any) -> dict[str, Any]:
    from fedmon.researcher.runs.start import checked_limits

    found = json_object(value)
    checked_limits(found)
    return found


class Job(LinkedResource):
    """STARTED while the plan runs, STOPPED when it ended well on every node, FAILED with each node's reason if not.

    With ``atLeast``, that many nodes suffice. It runs on the nodes that it is connected to, or those of its dataset, if
    their owners approved the plan; else wherever the plan was approved. Nodes that failed before it starts are left
    out unless they are critical. The numbers that the plan reports reach conditions under its guid. It is sent to
    nodes once: ``jobId`` is journaled before they are asked, so `adopt` finds the run again, and a job that ended is
    not started again.
    """

    _rtype = "fedmon::Job"
    _help = "A run of an approved plan: STOPPED when it ended well on all nodes, FAILED with the reasons otherwise."
    _partners = (
        "fedmon::TrainingPlan", "fedmon::Node", "fedmon::Dataset", "fedmon::Aggregator", "fedmon::Monitor",
        "fedmon::Collector",
    )  # fmt: skip
    _once = ("fedmon::TrainingPlan", "fedmon::Dataset")
    _watched = "fedmon::Node"
    _needs = tuple(
        Need(verb="deploy", of=rtype) for rtype in ("fedmon::Node", "fedmon::Dataset", "fedmon::TrainingPlan")
    )
    asks_federation = True
    _ends_itself = True
    _required_connections = (("fedmon::TrainingPlan",),)

    own_attributes = (
        CheckedAttribute("args", "Content of context.arguments in the plan.", json_object, _OBJECT),
        CheckedAttribute("inputs", "Content of context.inputs in the plan.", inputs,
                         f"{_OBJECT}, or the path of a .json or .npz file, which may hold arrays", is_path=True),
        CheckedAttribute("inputsFrom", "The fedmon::Aggregator whose result is added to the inputs.",
                         lambda value: value if isinstance(value, str) else typed(Types.Integer, value),
                         "the guid or the name of a resource"),
        CheckedAttribute("limits", "The most it may use; nodes lower that to their own limits.", _limits,
                         'a JSON object, such as {"wall_s": 60}'),
        CheckedAttribute("tags", "The tags of the dataset, if no fedmon::Dataset is connected.", words,
                         "a list of texts", flags=Flags.Design),
        at_least("On how many of its nodes it must end well for it to be STOPPED; None: on all."),
        own("jobId", "The id under which nodes know it, once it was started."),
        own("ranOn", "The nodes that were asked to run it, separated by commas."),
        own("outcome", "How it ended, node by node."),
    )  # fmt: skip

    own_traces = (
        Trace("stdout", "The plan's standard output, if the owners allow it."),
        Trace("stderr", "The plan's standard error, if the owners allow it."),
        Trace("result", "The plan's results, as JSON by node; arrays by type, shape and, if few, elements."),
        Trace("scalars", "The plan's reports, a line of JSON each."),
    )

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self.handle: RunHandle | None = None  # its run; None before it was started or adopted
        self._lost: frozenset[NodeId] = frozenset()
        self._told = Reports()
        self._telling = threading.Lock()
        self._is_stopping = self._is_releasing = self._may_have_begun = False
        self._attempts = 0

    # --- starting -----------------------------------------------------------------------------------------------------

    def foreseen_here(self) -> Iterator[Problem]:
        """Yield a problem if the experiment does not have the resource whose result it takes."""
        try:
            if self.get("inputsFrom") is not None:
                self.ec.get_resource(self.get("inputsFrom"))
        except UnknownGuidError as error:
            yield Problem(kind="unknown-resource", guids=(self.guid,), text=f"inputsFrom of {self.name}: {error}")

    def foreseen(self) -> Iterator[Problem]:
        """Yield a problem if online nodes do not offer a dataset with its ``tags``; with ``atLeast`` a warning."""
        if self.get("tags") and not self.linked(Dataset):
            yield from missing_dataset(self, None, "warning" if self.get("atLeast") else "error")

    def do_start(self) -> None:
        """Ask the nodes to run the plan, once those are online that are expected to come back or may have begun it."""
        if self.get("outcome") is not None:
            self.warning(f"has ended as job {self.get('jobId')}, and is not sent again: register another fedmon::Job")
            self.set_started()
            self.set_stopped()
            return
        self._again = "start"  # before the look, so that no move in between is missed
        if away := self._away():
            self.wait_for(f"node {', '.join(away)} to be there")
            if self._may_have_begun:  # on a node that no resource stands for
                self.later(lambda: self.neighbour_moved(self), after="1s")
        else:
            self._again = ""
            self._begin()

    def nodes(self) -> list[NodeId] | None:
        """Return where it runs, or will; None for wherever it can."""
        linked, datasets = self.linked(Node), self.linked(Dataset)
        found = [node.node_id for node in linked if node.state < ResourceState.FAILED]
        for dataset in () if linked else datasets:
            found += dataset.node_ids("foundOn")
        for plan in self.linked(TrainingPlanResource):
            found = [node_id for node_id in found if plan.admits(node_id)] if linked or datasets else plan.approved_by
        return found if linked or datasets else found or None

    def _nodes_around(self) -> list[Node]:
        """Return the nodes that the job, its dataset or its plan is connected to."""
        return [each for each in self.around(2) if isinstance(each, Node)]

    def _away(self) -> list[NodeId]:
        seen, states = self.federation.nodes(), {node.get("nodeId"): node.state for node in self._nodes_around()}
        other = ResourceState.NEW if self._may_have_begun else ResourceState.FAILED
        return [
            node_id
            for node_id in self.nodes() or ()
            if is_gone(seen.get(node_id)) and states.get(node_id, other) < ResourceState.FAILED
        ]

    def _inputs(self) -> dict[str, Any]:
        given = self.get("inputs") or {}
        values = parcels.read_inputs(Path(given)) if isinstance(given, str) else dict(given)
        if self.get("inputsFrom") is not None:
            source = self.ec.get_resource(self.get("inputsFrom"))
            result = getattr(source, "result", None)
            if not isinstance(result, Mapping):
                wanted = "have it wait for a fedmon::Aggregator to be STOPPED"
                raise ResourceFailedError(f"{source.name} has no result for {self.name}: {wanted}")
            values.update(result)
        return values

    def _begin(self) -> None:
        nodes, needed = self.nodes(), self.get("atLeast")
        if nodes is not None and len(nodes) < (needed or 1):
            none = "none of its nodes is left: they failed, or their owners did not approve the plan"
            few = f"atLeast is {needed}, and there are {len(nodes)} nodes: {', '.join(nodes)}"
            raise ResourceFailedError(few if nodes else none)
        plan = self.linked(TrainingPlanResource)[0]
        dataset = next(iter(self.linked(Dataset)), None)
        dataset_id = dataset.get("datasetId") if dataset else None
        values = self._inputs()
        with self.lock:  # an attempt that took too long may go on
            job_id = self.get("jobId") or new_id()
            if not self.get("jobId"):
                self._set_own("jobId", job_id)  # before any node is asked; retries ask under it, after a crash, too
            self._attempts += 1
            attempt = self._attempts
        handle = self.federation.run(
            f"sha256:{plan.get('sha256')}",
            nodes=nodes,
            tags=None if dataset_id else (dataset or self).get("tags"),
            dataset=dataset_id,
            args=self.get("args"),
            inputs=values or None,
            limits=self.get("limits"),
            job_id=job_id,
            timeout_s=ASK_TIMEOUT_S,
        )
        self._set_own("ranOn", ",".join(handle.nodes))
        if self.state >= ResourceState.FAILED:  # released while nodes were asked
            handle.stop(timeout_s=_STOP_TIMEOUT_S)
            return
        parts = handle.states()
        if all(part.job is None and part.is_over for part in parts.values()):
            with self.lock:
                # A later attempt may have begun it; else nodes would refuse this id again.
                if attempt == self._attempts and not any(part.asked in SILENT for part in parts.values()):
                    self._set_own("jobId", None)
            said = "; ".join(by_reason({str(node_id): part.sentence() for node_id, part in parts.items()}))
            raise ResourceFailedError(f"no node accepted it: {said}")
        self.set_started()
        self._follow(handle, self._told)

    # --- following a run ----------------------------------------------------------------------------------------------

    def adopt(self) -> bool:
        """Follow the run of ``jobId``, even if another process started it; return False if no node knows it."""
        handle = self._found()
        if handle is None:
            return False
        handle.expect(self.ran_on)  # also nodes that forgot it: that is how it ended there
        if self.state < ResourceState.STARTED:
            self.set_started()
        self._follow(handle, self.controller.reports(self.guid) if self.handle is None else self._told)
        return True

    def _found(self) -> RunHandle | None:
        from fedmon.researcher.runs.errors import RunNotKnownError

        job_id = self.get("jobId")
        try:
            return self.federation.job(job_id, nodes=self.ran_on or None, expected=self.ran_on) if job_id else None
        except RunNotKnownError:
            return None

    def do_reconnect(self, verb: str | None) -> None:
        """Adopt the run; one that was about to start is asked for under its id, so no node starts it twice."""
        self._may_have_begun = self.get("jobId") is not None
        if verb in (None, "stop") and self.state is ResourceState.STARTED and not self.adopt():
            raise ResourceFailedError(f"no node that answers knows job {self.get('jobId')}")
        super().do_reconnect(verb)

    def _follow(self, handle: RunHandle, told: Reports) -> None:
        """Follow a run on all nodes that are not lost; conditions know the reports in ``told``."""
        self.handle, self._lost, self._told = handle, frozenset(), told
        self._subscriptions.append(handle.on_scalar(lambda one: self._tell(one.node_id, one.number, one.values)))
        self._when_over(handle, self._over)
        self.look()  # for nodes that failed before, and a stop that was faster

    def _when_over(self, handle: RunHandle, work: Callable[[], object]) -> None:
        """Do something once, when nothing more will come except from lost nodes."""
        self._subscriptions.append(handle.on_over(lambda: self.later(work), without=sorted(self._lost)))

    def look(self) -> None:
        """Wait no longer for nodes that failed, and tell those that were away of a stop."""
        failed = {node.get("nodeId") for node in self._nodes_around() if node.state is ResourceState.FAILED}
        lost = self._lost | failed.intersection(self.ran_on)
        if self.handle is not None and lost != self._lost:
            self._lost = lost
            self._when_over(self.handle, self._over)
        if self._is_stopping and not self._is_releasing and self.state is ResourceState.STARTED:
            self._end_quietly()

    def _tell(self, node_id: str, nth: int, values: Mapping[str, float | None]) -> None:
        """Tell a report to conditions, once."""
        with self._telling:  # until they know it, so `_over` goes on after that
            self.tell_metrics(self.guid, self._told.take(node_id, nth, values), source=node_id, nth=nth)

    def _over(self) -> None:
        """Keep the results and set how it ended, once nothing more will come."""
        handle = self.handle
        if handle is None or self.state is not ResourceState.STARTED:
            return
        parts = handle.states()
        running = [node_id for node_id, part in parts.items() if not part.is_over]
        if awaited := sorted(set(running) - self._lost):
            if handle.closed:
                self.fail(f"{handle.closed} while it ran on {', '.join(awaited)} (job {handle.job_id})")
            return
        for reporter, reported in handle.scalars.items():
            for one in reported:  # a resource that is STOPPED tells nothing more
                self._tell(reporter, one.number, one.values)
        lost = {str(node_id): "the node was lost while it ran there" for node_id in running}
        results, failed = handle.opened()
        failed |= lost
        stopped = {str(node_id) for node_id, part in parts.items() if part.job and part.job.state is JobState.STOPPED}
        stopped |= lost.keys() if self._is_releasing else set()
        is_well, outcome = ending_of(
            [node_id for node_id in handle.nodes if node_id not in failed],
            failed,
            stopped if self._is_stopping else (),
            at_least=self.get("atLeast"),
        )
        self._keep(handle, results)
        with self.lock:
            if self.handle is not handle or self.state is not ResourceState.STARTED:
                return
            self.note("outcome", outcome)
            if is_well:
                self.set_stopped()
        if not is_well:
            self.fail(outcome)
        elif outcome != _EVERYWHERE:
            self.warning(f"ended well, but not everywhere: {outcome}")

    # --- results ------------------------------------------------------------------------------------------------------

    @property
    def ran_on(self) -> list[NodeId]:
        """The nodes that were asked to run it."""
        return self.node_ids("ranOn")

    @property
    def results(self) -> Values:
        """The results by node, of the nodes that succeeded so far; once it is STOPPED, those kept then."""
        if self.handle is None or self.state is ResourceState.STOPPED:
            return saved_values(self.folder / "returned")
        return self.handle.results()

    def written(self, name: str) -> Path:
        """Return the file of a trace, fetched if it may have changed."""
        path, handle = super().written(name), self.handle
        if handle is not None and (not path.exists() or self.state is ResourceState.STARTED):
            if name != "result":
                self._write(handle, name)
            elif results := handle.results():
                self._keep_results(results)
        return path

    def _keep(self, handle: RunHandle, results: Values) -> None:
        """Write the traces of a run that is over; nodes forget logs."""
        self._keep_results(results)
        self._write(handle, "scalars")
        for name in filter(self.trace_enabled, ("stdout", "stderr")):
            try:
                self._write(handle, name)
            except FedmonError as error:
                self.warning(f"{name} cannot be kept: {error}")

    def _keep_results(self, results: Values) -> None:
        write_shown(super().written("result"), results)
        run_values.save(results, self.folder / "returned")

    def _write(self, handle: RunHandle, name: str) -> None:
        if name == "scalars":
            content = b"".join(
                msgspec.json.encode({"node": node_id, **msgspec.structs.asdict(scalar)}) + b"\n"
                for node_id, reported in handle.scalars.items()
                for scalar in reported
            )
        else:
            content = log_text(handle, "stderr" if name == "stderr" else "stdout").encode("utf-8", "replace")
        write_whole(super().written(name), content, folder_mode=0o700)

    # --- the end ------------------------------------------------------------------------------------------------------

    def do_stop(self) -> None:
        """Ask the nodes to stop it; it is STOPPED when they report that."""
        self.wait_for(f"node {', '.join(self.ran_on)} to stop it")
        self.end_work()

    def do_release(self) -> None:
        """Stop the run; the job is RELEASED when nodes report how it ended, or after a while."""
        self._is_releasing = True
        handle = self.handle if self.state is ResourceState.STARTED else None
        self._end_quietly()
        if handle is not None:
            self._when_over(handle, self.finish_release)
            self.later(self.finish_release, after=_END_PATIENCE)
        else:
            self.finish_release()

    def finish_release(self) -> None:
        """Take the results and release the job, once."""
        with self.lock:
            if self.state is not ResourceState.RELEASED:
                self._trapped(self._over)  # on a full disk, too, the release ends
                super().finish_release()

    def end_work(self) -> None:
        """Stop the run on its nodes."""
        self._is_stopping = True
        handle = self.handle
        if handle is None and (self.state is ResourceState.FAILED or self.get("outcome") is None):
            handle = self._found()  # another process may have left it running, or its start may be under way
        if handle is not None and not handle.closed and not all(part.is_over for part in handle.states().values()):
            handle.stop(timeout_s=_STOP_TIMEOUT_S)


def write_shown(path: Path, value: Any) -> None:
    """Write values for people to read. Raises StorageError."""
    text = json.dumps(run_values.shown(value), ensure_ascii=False, indent=1)
    write_whole(path, text.encode("utf-8", "replace"), folder_mode=0o700)


def saved_values(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the values that `run_values.save` wrote, by name; empty if it wrote nothing."""
    paths = sorted(path for path in folder.glob("*") if path.suffix in (".json", ".npz"))
    return {path.stem: parcels.read_inputs(path) for path in paths}


def log_text(handle: RunHandle, stream: Literal["stdout", "stderr"]) -> str:
    """Return the plan's output, under a heading for each node if there are several.

    Raises TraceNotReadableError if no owner lets it leave, or no node answers.
    """
    said: dict[str, str] = {}
    missing: dict[str, str] = {}
    for node_id, part in handle.states().items():
        try:
            log = handle.logs(node_id, stream) if part.job is not None else None
        except FedmonError as error:
            missing[node_id] = str(error)
            continue
        if log is not None and not log.withheld:
            said[node_id] = log.text
        else:
            missing[node_id] = part.sentence() if log is None else f"withheld: {log.withheld}"
    if not said:
        raise TraceNotReadableError("; ".join(by_reason(missing)))
    if len(said) == 1 and not missing:
        return next(iter(said.values()))
    parts = said | {node_id: f"({reason})\n" for node_id, reason in missing.items()}
    return "".join(f"==> {node_id} <==\n{text}\n" for node_id, text in sorted(parts.items()))
