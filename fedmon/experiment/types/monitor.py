"""`fedmon::Monitor`: records the metrics of nodes while the jobs that it is connected to run."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon.common.clock import Deadline
from fedmon.common.errors import StorageError
from fedmon.common.metrics.series import metric_name
from fedmon.experiment.attributes import Attribute, Flags, Trace, Types
from fedmon.experiment.check.plan import MEMORY_SHARE, unknown_metric
from fedmon.experiment.natures import Need
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.base import LinkedResource
from fedmon.experiment.types.job import Job
from fedmon.experiment.types.node import Node
from fedmon.experiment.types.values import CheckedAttribute, own, words

if TYPE_CHECKING:
    from fedmon.researcher.samples.record import Record
    from fedmon.researcher.samples.watch import LiveSample, Watch

_PATIENCE_S, _LOOK_EVERY_S = 5.0, 0.02
_USED, _TOTAL = "host_memory_used_bytes", "host_memory_total_bytes"


def _metrics(value: Any) -> list[str]:
    """Return names and patterns of metrics; an unknown name that is close to a known one is a typing error."""
    found = words(value)
    for name in found:
        if near := unknown_metric(name):
            raise ValueError(f"unknown metric {metric_name(name)!r}; did you mean {near!r}?")
    return found


class Monitor(LinkedResource):
    """Records the metrics of nodes: while the jobs that it is connected to run, or from start to stop without any.

    With jobs it begins when the first starts, and is STOPPED when the last is over. Each value reaches conditions under
    its own guid and that of the node, by the name of its series, such as ``gpu_power_watts{gpu="0"}``, and without
    labels if the sample has one series of that name. Those of ``job-...`` streams reach them under the guid of the job.
    A reconnect continues the recording; it lacks the time between unless nodes still have those samples.
    """

    asks_federation = True
    _rtype = "fedmon::Monitor"
    _help = "Records metrics of nodes while the connected jobs run; conditions can ask for them."
    _partners = ("fedmon::Node", "fedmon::Job", "fedmon::Collector")
    _watched = "fedmon::Job"
    _needs = (Need(verb="deploy", of="fedmon::Node"), Need(verb="stop", of="fedmon::Job", state=ResourceState.STOPPED))
    _ends_itself = True
    _required_connections = (("fedmon::Node", "fedmon::Job"),)

    own_attributes = (
        CheckedAttribute("metrics", "The metrics to record, with * and ?; None: all.", _metrics,
                         'a list of texts, such as ["host_memory_*"]', flags=Flags.Construct),
        Attribute("interval", "The wished seconds between samples; None: each owner's own pace.",
                  Types.Double, Flags.Construct, range=(0.1, 3600.0)),
        own("samples", "How many samples were recorded.", type=Types.Integer, default=0),
    )  # fmt: skip
    own_traces = (Trace("recording", "The recording, a SQLite file that `fedmon report` reads.", enabled=True),)
    _record: Record | None = None
    _watch: Watch | None = None
    _is_ending = False

    def do_start(self) -> None:
        """Begin, or wait for the first job to start."""
        self._is_ending = False
        self.set_started()
        self.look()

    def look(self) -> None:
        """Begin when a job runs, and end when all are over."""
        states = [job.state for job in self.linked(Job)]
        is_over = bool(states) and all(state >= ResourceState.STOPPED for state in states)
        with self.lock:
            if is_over:
                self.end_work()
            if self.state is not ResourceState.STARTED:
                return
            if is_over:
                self.set_stopped()
            elif self._record is None and not self._is_ending and (not states or ResourceState.STARTED in states):
                self._begin()

    def _begin(self) -> None:
        nodes = [node.node_id for node in self.linked(Node) if node.state < ResourceState.FAILED]
        nodes += [node_id for job in self.linked(Job) for node_id in job.ran_on or job.nodes() or ()]
        nodes, interval_s = list(dict.fromkeys(nodes)), self.get("interval")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._record = self.federation.record(
            self.written("recording"), nodes=nodes, metrics=self.get("metrics"), interval_s=interval_s, history_s=0.0
        )
        self._watch = self.federation.monitor(self._sampled, nodes=nodes, interval_s=interval_s)

    def _sampled(self, sample: LiveSample) -> None:
        if sample.late:
            return  # conditions ask for the present
        values = {series: value for series, value in sample.values.items() if value is not None}
        counts = Counter(map(metric_name, values))
        values |= {name: value for series, value in values.items() if counts[name := metric_name(series)] == 1}
        if values.get(_TOTAL) and _USED in values:
            values[MEMORY_SHARE] = values[_USED] / values[_TOTAL]
        self._tell(self.guid, values, sample.node_id)
        for node in self.linked(Node):
            if node.get("nodeId") == sample.node_id:
                self._tell(node.guid, values)
        for job in self.linked(Job):
            if sample.stream == f"job-{job.get('jobId')}":
                self._tell(job.guid, values, sample.node_id)

    def _tell(self, guid: int, values: Mapping[str, float], source: str = "") -> None:
        """Report the values that conditions on a resource ask for."""
        resource = self.controller.snapshot.resources.get(guid)
        asked = {condition.metric.name for condition in resource.metric_conditions} if resource is not None else set()
        self.tell_metrics(guid, {name: values[name] for name in sorted(asked & values.keys())}, source=source)

    def written(self, name: str) -> Path:
        """Return the file of the recording."""
        return super().written(name).with_suffix(".sqlite")

    def do_stop(self) -> None:
        """End the recording."""
        self.end_work()
        super().do_stop()

    def end_work(self) -> None:
        """End the recording and the watch; samples that are known to exist have a moment to arrive."""
        from fedmon.common.store.recording import Recording

        with self.lock:  # a second caller waits for the end
            self._is_ending = True
            record, watch, self._record, self._watch = self._record, self._watch, None, None
            if watch is not None:
                watch.close()
            if record is not None:
                # A stream is stored in order, so nothing of it before the node told where it begins.
                deadline = Deadline(_PATIENCE_S)
                while record.counts.pending and not deadline.passed():
                    threading.Event().wait(_LOOK_EVERY_S)
                record.close()
                # Without a sample there is no file; with one, it may have those of an earlier process.
                with contextlib.suppress(StorageError), Recording(record.path, read_only=True) as kept:
                    self.note("samples", sum(each.samples for each in kept.extents()))
