"""`fedmon::Monitor`: what nodes measure, recorded while what it is connected to runs."""

from __future__ import annotations

import difflib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon.common.clock import Deadline
from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS
from fedmon.experiment.attributes import Attribute, Flags, Trace, Types
from fedmon.experiment.natures import Need
from fedmon.experiment.resource import Experiment, clsinit_copy
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.base import LinkedResource, MissingPartError
from fedmon.experiment.types.job import Job
from fedmon.experiment.types.node import Node
from fedmon.experiment.types.values import CheckedAttribute, own, words

if TYPE_CHECKING:
    from fedmon.researcher.samples.record import Record
    from fedmon.researcher.samples.watch import LiveSample, Watch

MEMORY_SHARE = "host_memory_used_ratio"
"""Made here for conditions, of the two metrics that nodes send."""
_NEAR = 0.85
"""Names that are less alike than this are those of plug-ins and users."""
_PATIENCE_S, _LOOK_EVERY_S = 2.0, 0.02
_USED, _TOTAL = "host_memory_used_bytes", "host_memory_total_bytes"


def _metrics(value: Any) -> list[str]:
    """Return names and patterns of metrics; a name that is close to a known one, and unknown, is a typing error."""
    found = words(value)
    for name in map(metric_name, found):
        near = difflib.get_close_matches(name, METRICS, n=1, cutoff=_NEAR)
        if near and name not in METRICS and not set(name) & set("*?["):
            raise ValueError(f"there is no metric {name!r}; did you mean {near[0]!r}?")
    return found


@clsinit_copy
class Monitor(LinkedResource):
    """Records the metrics of nodes: while the jobs that it is connected to run, or from start to stop without any.

    With jobs it begins when the first starts, and is STOPPED when the last is over. Each value reaches conditions under
    its own guid and that of the node, by the name of its series, such as ``gpu_power_watts{gpu="0"}``; without labels,
    too, where a sample has one of that name. Those of ``job-...`` streams reach them under the guid of the job.
    """

    asks_federation = True
    _rtype = "fedmon::Monitor"
    _help = "Records metrics of nodes while what it is connected to runs; conditions can ask for them."
    _partners = ("fedmon::Node", "fedmon::Job", "fedmon::Collector")
    _needs = (Need(verb="deploy", of="fedmon::Node"), Need(verb="stop", of="fedmon::Job", state=ResourceState.STOPPED))
    _ends_itself = True
    _passes = ()
    _required_connections = (("fedmon::Node", "fedmon::Job"),)

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self._record: Record | None = None
        self._watch: Watch | None = None
        self._ending = threading.Lock()
        self._is_ending = False

    own_attributes = (
        CheckedAttribute("metrics", "What is recorded, with * and ?; None: everything.", _metrics,
                         'a list of texts, such as ["host_memory_*"]', flags=Flags.Construct),
        Attribute("interval", "The seconds between samples that nodes are asked for; None: each owner's own pace.",
                  Types.Double, Flags.Construct, range=(0.1, 3600.0)),
        own("samples", "How many samples were recorded.", type=Types.Integer, default=0),
    )  # fmt: skip

    own_traces = (Trace("recording", "The recording, a SQLite file that `fedmon report` reads.", enabled=True),)

    def do_deploy(self) -> None:
        """Be READY when its nodes are."""
        if not self.linked(Node) and not self.linked(Job):
            raise MissingPartError(self.name, "nodes", "connect it to a fedmon::Node or a fedmon::Job")
        if self.ready(self.linked(Node)) is not None:
            super().do_deploy()

    def do_start(self) -> None:
        """Begin, or wait for the first job to start."""
        self._is_ending = False
        self.set_started()
        self._look()

    def do_reconnect(self, verb: str | None) -> None:
        """Go on with the recording, which lacks what was measured meanwhile unless nodes still have it."""
        if verb is None and self.state is ResourceState.STARTED:
            self._look()
        else:
            super().do_reconnect(verb)

    def neighbour_moved(self, other: LinkedResource) -> None:
        """Look whether jobs run."""
        super().neighbour_moved(other)
        if isinstance(other, Job) and self.state is ResourceState.STARTED:
            self.later(self._look)

    def _look(self) -> None:
        states = [job.state for job in self.linked(Job)]
        if states and all(state >= ResourceState.STOPPED for state in states):
            self.end_work()
        with self.lock:
            if self.state is not ResourceState.STARTED:
                return
            if states and all(state >= ResourceState.STOPPED for state in states):
                self.set_stopped()
            elif self._record is None and not self._is_ending and (not states or ResourceState.STARTED in states):
                self._begin()

    def _begin(self) -> None:
        nodes = [node.node_id for node in self.linked(Node) if node.state < ResourceState.FAILED]
        nodes += [node_id for job in self.linked(Job) for node_id in job.ran_on]
        nodes, interval_s = list(dict.fromkeys(nodes)), self.get("interval")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._record = self.federation.record(
            self.written("recording"), nodes=nodes, metrics=self.get("metrics"), interval_s=interval_s, history_s=0.0
        )
        self._watch = self.federation.monitor(self._sampled, nodes=nodes, interval_s=interval_s)

    def _sampled(self, sample: LiveSample) -> None:
        if sample.late:
            return  # conditions ask for what is, and this was
        values = {series: value for series, value in sample.values.items() if value is not None}
        names = [metric_name(series) for series in values]
        values |= {
            name: values[series] for series, name in zip(list(values), names, strict=True) if names.count(name) == 1
        }
        if values.get(_TOTAL) and _USED in values:
            values[MEMORY_SHARE] = values[_USED] / values[_TOTAL]
        self.tell_metrics(self.guid, values, source=sample.node_id, only_asked=True)
        for node in self.linked(Node):
            if node.get("nodeId") == sample.node_id:
                self.tell_metrics(node.guid, values, only_asked=True)
        for job in self.linked(Job):
            if sample.stream == f"job-{job.get('jobId')}":
                self.tell_metrics(job.guid, values, source=sample.node_id, only_asked=True)

    def written(self, name: str) -> Path:
        """Return the file of the recording."""
        return super().written(name).with_suffix(".sqlite")

    def do_stop(self) -> None:
        """End the recording."""
        self.end_work()
        super().do_stop()

    def end_work(self) -> None:
        """End the recording and the watch; samples that are known to exist have a moment to come."""
        with self._ending:  # whoever comes second waits for the end
            with self.lock:
                self._is_ending = True
                record, watch = self._record, self._watch
                self._record = self._watch = None
            if watch is not None:
                watch.close()
            if record is not None:
                # A stream is written in order, so nothing of it before the node told where it begins.
                deadline = Deadline(_PATIENCE_S)
                while record.counts.pending and not deadline.passed():
                    threading.Event().wait(_LOOK_EVERY_S)
                record.close()
                self.note("samples", record.counts.stored)
