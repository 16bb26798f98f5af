"""`fedmon::Aggregator`: a function of the researcher over the results of jobs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedmon.experiment.attributes import Flags
from fedmon.experiment.natures import Need
from fedmon.experiment.resource import Experiment, clsinit_copy
from fedmon.experiment.states import ResourceState
from fedmon.experiment.traces import Trace
from fedmon.experiment.types import aggregations, job_files
from fedmon.experiment.types.errors import MissingPartError, NeighbourLostError
from fedmon.experiment.types.job import Job
from fedmon.experiment.types.linked import LinkedResource
from fedmon.experiment.types.values import CheckedAttribute, own

MAX_ATTRIBUTE_BYTES = 16_384
"""Of a result in the attribute, and so in the journal; a larger one is told by its names, and is whole in the trace."""


@clsinit_copy
class Aggregator(LinkedResource):
    """Waits, once it was started, for the jobs that it is connected to, and is STOPPED with the result of its function.

    Jobs that failed and are not critical are left out, unless none is left. The numbers of its result reach conditions
    under its guid; ``result`` is the result itself.
    """

    _rtype = "fedmon::Aggregator"
    _help = "A function over the results of the jobs that it is connected to."
    _partners = ("fedmon::Job", "fedmon::Collector")
    _needs = (Need(verb="stop", of="fedmon::Job", state=ResourceState.STOPPED),)
    _ends_itself = True
    _passes = ()
    _required_connections = (("fedmon::Job",),)

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self._result: dict[str, Any] | None = None
        self._is_done = False

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(
            CheckedAttribute(
                "function",
                "What is done with the results of each node: collect, sum, mean, weighted-mean, or one's own.",
                aggregations.checked,
                "a function, or the name of one that was registered",
                flags=Flags.Design,
                default="collect",
            )
        )
        cls._register_attribute(own("result", "What came of it, as JSON; by names alone where it is large."))

    @classmethod
    def _register_traces(cls) -> None:
        cls._register_trace(Trace("result", "What came of it, as JSON; arrays by type, shape and, if few, elements."))

    @property
    def result(self) -> dict[str, Any] | None:
        """What came of it, with arrays; null as long as nothing has."""
        if self._result is None and self.get("result") is not None:
            self._result = job_files.saved_values(self.folder).get("values")
        return self._result

    def do_reconnect(self, verb: str | None) -> None:
        """Go on to wait for the jobs."""
        if self.state is ResourceState.STARTED and verb in (None, "start"):
            self._look()
        else:
            super().do_reconnect(verb)

    def do_deploy(self) -> None:
        """Refuse to be READY without jobs."""
        if not self.linked(Job):
            raise MissingPartError(self.name, "jobs", "connect it to one fedmon::Job or more")
        super().do_deploy()

    def do_start(self) -> None:
        """Wait for the jobs."""
        self._is_done = False
        self.set_started()
        self._look()

    def neighbour_moved(self, other: LinkedResource) -> None:
        """Look whether all jobs are over."""
        super().neighbour_moved(other)
        if isinstance(other, Job) and self.state is ResourceState.STARTED:
            self.later(self._look)

    def _look(self) -> None:
        jobs = self.linked(Job)
        with self.lock:
            if self._is_done or self.state is not ResourceState.STARTED:
                return
            if any(job.state < ResourceState.STOPPED for job in jobs):
                return
            self._is_done = True
        lost = [job for job in jobs if job.state >= ResourceState.FAILED]
        left = [job for job in jobs if job not in lost]
        if lost and (not left or any(job.get("critical") for job in lost)):
            raise NeighbourLostError(self.name, lost[0].name, lost[0].state.name, lost[0].reason)
        found = aggregations.aggregation(self.get("function"))(_results(left))
        self._keep(dict(found) if isinstance(found, Mapping) else {"value": found})
        self.set_stopped()

    def _keep(self, found: dict[str, Any]) -> None:
        job_files.save_values(self.folder, {"values": found})
        job_files.write_shown(self.folder / "result", found)
        text = json.dumps(job_files.shown(found), ensure_ascii=False)
        if len(text) > MAX_ATTRIBUTE_BYTES:
            text = json.dumps({"names": sorted(map(str, found))})[:MAX_ATTRIBUTE_BYTES]
        self._result = found
        self._note_own("result", text)
        numbers = {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
        self.tell_metrics(self.guid, numbers)


def _results(jobs: list[Job]) -> dict[str, Mapping[str, Any]]:
    """Return the results by node; where several jobs ran on a node, by node and job."""
    times = Counter(node for job in jobs for node in job.results)
    return {
        node if times[node] == 1 else f"{node}#{job.guid}": values
        for job in jobs
        for node, values in job.results.items()
    }
