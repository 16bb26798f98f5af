"""The GPUs of this machine as one thread reads them: handles, questions that are refused for good, and lost GPUs."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fedmon.common.actor import Actor
from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Why
from fedmon.node.collectors.nvml import queries
from fedmon.node.collectors.nvml.library import AbsentError, Meaning, Nvml, RefusedError, load_nvml, text
from fedmon.node.collectors.nvml.processes import GpuProcesses, GpuUse, ProcessTable
from fedmon.node.collectors.nvml.queries import Gpu, Labels, Query, Value

logger = logging.getLogger(__name__)

RETRY_S = 10.0
_MAX_RETRY_S = 300.0
_FRESH_S = 2.0
_END_S = 0.5
_PATIENCE_S = 5.0
_ENERGY = "gpu_energy_joules_total"
_NO_MIG = f"{Why.UNSUPPORTED.value}: no GPU is split into MIG instances"
_NO_VALUE = f"{Why.UNSUPPORTED.value}: the driver has no value for it"


class NvmlSession:
    """NVML, started once, with the handles of its GPUs, and what their readers found for others.

    One thread, ``fedmon-gpu``, makes all calls of NVML, which may hang: `gpus` and `lose` belong to it, all other
    methods are safe from any thread and never wait for NVML. A GPU keeps its label, the index under which it was seen
    first. NVML is started again only when a GPU was lost. ``absent`` says why there is no GPU.
    """

    def __init__(
        self,
        nvml: Nvml | None,
        *,
        absent: AbsentError | None = None,
        retry_s: float = RETRY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml, self._monotonic = nvml, monotonic
        self.absent = absent or (None if nvml else AbsentError(Why.NOT_FOUND, "NVML"))
        self._lock = threading.Lock()
        self._actor: Actor | None = None
        self._users = 0
        self.patience = Deadline(_PATIENCE_S)
        """Until when first readings are waited for, all lanes together."""
        self.doing = ""
        """The present call, for reasons."""
        self.starts = 0
        self.lost: dict[str, str] = {}
        self._gpus: dict[str, Gpu] | None = None
        self._is_running = False
        self._labels: dict[str, str] = {}
        self._problem: CollectorUnavailableError | None = None
        self._backoff = Backoff(retry_s, longest_s=_MAX_RETRY_S)
        self._restart_at: float | None = None
        self._energy: tuple[float, Mapping[str, float]] = (0.0, {})
        self._processes: tuple[float, ProcessTable | None] = (0.0, None)
        self._hardware: list[dict[str, Any]] = []

    def gpu_energy(self) -> dict[str, float]:
        """Return the energy counter of each GPU in joules, as read for this tick; empty when there is no reading.

        A counter goes back to 0 when the driver is loaded anew.
        """
        at, energy = self._energy
        return dict(energy) if self._monotonic() - at <= _FRESH_S else {}

    def processes(self) -> ProcessTable | None:
        """Return which processes use the GPUs, as read for this tick; None when there is no reading."""
        at, table = self._processes
        return table if self._monotonic() - at <= _FRESH_S else None

    def hardware(self) -> list[dict[str, Any]]:
        """Describe each GPU, without its serial number; empty until the collectors were probed."""
        return [dict(gpu) for gpu in self._hardware]

    def keep(self, *, energy: Mapping[str, float], uses: Mapping[str, GpuUse]) -> None:
        """Keep the result of `gpu_energy` and `processes`."""
        before, now = self._processes[1], self._monotonic()
        self._energy = now, energy
        self._processes = now, ProcessTable(before.number + 1 if before else 1, uses)

    def keep_hardware(self, hardware: list[dict[str, Any]]) -> None:
        """Keep the result of `hardware`."""
        self._hardware = hardware

    def schedule(self, job: Callable[[], object], due: float | None = None) -> None:
        """Run a job on the reader's thread, at once or at a monotonic time; nothing while no collector is open."""
        with self._lock:
            if self._actor is None:
                return
            if due is None:
                self._actor.post(job)
            else:
                self._actor.at(due, job)

    def enter(self) -> None:
        """Open the thread for one collector more."""
        with self._lock:
            self._users += 1
            if self._actor is None:
                self._actor, self.patience = Actor("fedmon-gpu"), Deadline(_PATIENCE_S)
                self._actor.start()

    def leave(self) -> None:
        """Close it for one collector; the last one ends NVML, and leaves a thread behind that is stuck in a call."""
        with self._lock:
            self._users -= 1
            if self._users or self._actor is None:
                return
            actor, self._actor = self._actor, None
        actor.post(self._end)
        if not actor.close(timeout_s=_END_S) and self.absent is None:
            logger.warning("the thread fedmon-gpu was left behind: it is stuck in %s", self.doing or "a call")

    # --- on the reader's thread --------------------------------------------------------------------------------------

    def gpus(self) -> Mapping[str, Gpu]:
        """Return the GPUs by label, lost ones included; starts NVML when it does not run, or is to run anew.

        Raises AbsentError when there is no GPU, CollectorUnavailableError when NVML cannot be started.
        """
        if self.absent is not None:
            raise self.absent
        is_due = self._restart_at is None or self._monotonic() >= self._restart_at
        if is_due and (self._gpus is None or self._restart_at is not None):
            self._begin()
        if self._gpus is None:
            if self.absent is not None:
                raise self.absent
            raise self._problem or CollectorUnavailableError(Why.FAILED, "NVML")
        return self._gpus

    def lose(self, label: str, reason: str) -> None:
        """Leave a GPU alone that fell off the bus, until NVML was started again."""
        if label not in self.lost:
            logger.warning("GPU %s is lost: %s", label, reason)
            self.lost[label] = reason
            self._restart_later()

    def _restart_later(self) -> None:
        if self._restart_at is None:
            self._restart_at = self._monotonic() + self._backoff.next_s()

    def _begin(self) -> None:
        if self._nvml is None:
            return
        self._end()
        self._restart_at = None
        try:
            self.doing = "nvmlInit"
            self._nvml.call("nvmlInit")
            self._is_running = True
            count = self._nvml.call("nvmlDeviceGetCount")
        except RefusedError as error:
            self._end()
            if not self.starts and error.error in ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "FUNCTION_NOT_FOUND"):
                self.absent = AbsentError(Why.NOT_FOUND, error.reason.partition(": ")[2])
                return
            self._problem = error
            self._restart_later()
            return
        if count == 0 and not self._labels:
            self._end()
            self.absent = AbsentError(Why.NOT_FOUND, "no GPU: NVML lists none")
            return
        self.starts += 1
        self._list(self._nvml, count)
        if self.lost:
            self._restart_later()
        else:
            self._backoff.reset()

    def _end(self) -> None:
        self._gpus = None
        if self._is_running and self._nvml is not None:
            self._is_running = False
            with contextlib.suppress(RefusedError):
                self._nvml.call("nvmlShutdown")

    def _list(self, nvml: Nvml, count: int) -> None:
        self._gpus, self.lost = {}, {}
        for index in range(count):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
                label = self._label(nvml, handle, index)
            except RefusedError as error:
                if str(index) not in self._labels.values():
                    self.lost[str(index)] = error.reason
                continue
            self._gpus[label] = Gpu(nvml, handle, (("gpu", label),))
        for label in self._labels.values():
            if label not in self._gpus:
                self.lost[label] = f"{Why.NOT_FOUND.value}: GPU {label} is no longer listed"

    def _label(self, nvml: Nvml, handle: object, index: int) -> str:
        try:
            identity = text(nvml.call("nvmlDeviceGetUUID", handle))
        except RefusedError as error:
            if error.meaning is Meaning.LOST:
                raise
            identity = f"index {index}"
        if identity not in self._labels:
            taken = set(self._labels.values())
            free = (str(number) for number in range(index, index + len(taken) + 1))
            self._labels[identity] = next(label for label in free if label not in taken)
        return self._labels[identity]


class Device:
    """Asks one device its questions, but no longer those that it refused for good.

    ``before`` is the same device before it was asked anew: until it has answered, its series are still known.
    """

    def __init__(self, gpu: Gpu, asked: Iterable[Query], *, before: Device | None = None) -> None:
        self.gpu = gpu
        self._before = tuple(before.known()) if before is not None else ()
        self._slots = [_Slot(query) for query in asked]
        self._refused: dict[str, str] = {}
        self._keys: dict[tuple[str, Labels], str] = {}

    def read(self, values: dict[str, float | None], reasons: dict[str, str], session: NvmlSession) -> None:
        """Ask everything once. Raises RefusedError when the device is lost."""
        where = dict(self.gpu.labels)["gpu"]
        for slot in list(self._slots):
            session.doing = f"{slot.query.name} of GPU {where}"
            self._ask(slot, values, reasons)
        self._before = ()

    def null(self, values: dict[str, float | None], reasons: dict[str, str], reason: str) -> None:
        """Give None with one reason for every series that the device gave before."""
        keys = self.known()
        values.update(keys)
        reasons.update(dict.fromkeys(keys, reason))

    def known(self) -> dict[str, None]:
        """Return the series that the device gave."""
        return dict.fromkeys([*self._before, *(key for slot in self._slots for key in slot.gave)])

    def report(self) -> Mapping[str, str | None]:
        """Map each metric that was asked for to None when the device gives it, else to the reason."""
        found: dict[str, str | None] = dict(self._refused)
        for slot in self._slots:
            for metric, _ in slot.query.gives:
                if not slot.problem:
                    found[metric] = None
                elif found.get(metric, "") is not None:
                    found[metric] = slot.problem
        return found

    def _ask(self, slot: _Slot, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        try:
            answer = _answered(slot.query, self.gpu)
        except RefusedError as error:
            if error.meaning is Meaning.LOST:
                raise
            if error.meaning is Meaning.NEVER and not slot.worked:
                self._give_up(slot, error.reason, values, reasons)
                return
            slot.problem = error.reason
            keys = slot.gave or tuple(self._key(name, own) for name, own in slot.query.gives if own is not None)
            values.update(dict.fromkeys(keys))
            reasons.update(dict.fromkeys(keys, error.reason))
            return
        gave = []
        for metric, labels, number in answer:
            gave.append(key := self._key(metric, labels))
            values[key] = number
            if number is None:
                reasons[key] = _NO_VALUE
        slot.gave, slot.worked, slot.problem = tuple(gave), True, ""

    def _give_up(self, slot: _Slot, reason: str, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        for metric, _ in slot.query.gives:
            self._refused.setdefault(metric, reason)
        if slot.query.otherwise is None:
            self._slots.remove(slot)
        else:
            slot.query = slot.query.otherwise
            self._ask(slot, values, reasons)

    def _key(self, metric: str, labels: Labels) -> str:
        key = self._keys.get((metric, labels))
        if key is None:
            key = self._keys[metric, labels] = series(metric, **dict((*self.gpu.labels, *labels)))
        return key


class _Slot:
    """One question, and what came of it."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.worked, self.problem = False, ""
        self.gave: tuple[str, ...] = ()


def _answered(query: Query, gpu: Gpu) -> list[Value]:
    try:
        return list(query.read(gpu))
    except (TypeError, AttributeError, LookupError) as error:
        raise RefusedError(query.name, f"{type(error).__name__}: {error}", Meaning.ONCE) from None


class Round(NamedTuple):
    """The result of one round; ``report`` maps each metric, or a series of it, to None or the reason."""

    values: Mapping[str, float | None]
    reasons: Mapping[str, str]
    report: Mapping[str, str | None]


class LaneReader:
    """Asks every GPU the questions of one lane, on the reader's thread.

    ``with_processes`` also lists processes, MIG instances and energy for others; ``with_hardware`` describes each GPU.
    """

    def __init__(
        self,
        session: NvmlSession,
        asked: Iterable[Query],
        *,
        with_processes: bool = False,
        with_hardware: bool = False,
    ) -> None:
        self.session, self._queries = session, tuple(asked)
        self._with_processes, self._with_hardware = with_processes, with_hardware
        self._start = 0
        self._devices: dict[str, Device] = {}
        self._processes: dict[str, GpuProcesses] = {}
        self._instances: dict[str, dict[str, Device]] = {}
        self._partitioned: dict[str, bool] = {}

    def read(self) -> Round:
        """Ask everything once. Raises CollectorUnavailableError when no GPU can be asked."""
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        gpus, lost = self.session.gpus(), self.session.lost
        if self.session.starts != self._start:
            self._renew(gpus)
        for label, gpu in gpus.items():
            if label not in lost:
                try:
                    self._read(label, gpu, values, reasons)
                except RefusedError as error:
                    self.session.lose(label, error.reason)
        for label in self._devices.keys() & lost.keys():
            for device in (self._devices[label], *self._instances.get(label, {}).values()):
                device.null(values, reasons, lost[label])
        if self._with_processes:
            uses = {
                label: GpuUse(None, None, lost[label], lost[label]) if label in lost else processes.take()
                for label, processes in self._processes.items()
            }
            counters = {label: values.get(series(_ENERGY, gpu=label)) for label in gpus}
            self.session.keep(
                energy={label: joules for label, joules in counters.items() if joules is not None}, uses=uses
            )
        return Round(values, reasons, self._report())

    def _renew(self, gpus: Mapping[str, Gpu]) -> None:
        """Ask the GPUs of another start of NVML everything again; series of a GPU that is gone are still known."""
        self._start = self.session.starts
        for label, gpu in gpus.items():
            self._processes.setdefault(label, GpuProcesses())
            self._instances.pop(label, None)
            self._partitioned.pop(label, None)
            self._ask_anew(label, gpu)
        if self._with_hardware:
            self.session.doing = "the description of the GPUs"
            self.session.keep_hardware([queries.describe(gpu) for gpu in gpus.values()])

    def _ask_anew(self, label: str, gpu: Gpu) -> None:
        own = self._processes[label].queries if self._with_processes else ()
        self._devices[label] = Device(gpu, (*self._queries, *own), before=self._devices.get(label))

    def _read(self, label: str, gpu: Gpu, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        if self._with_processes:
            self._look_for_instances(label, gpu)
        for device in (self._devices[label], *self._instances.get(label, {}).values()):
            device.read(values, reasons, self.session)

    def _look_for_instances(self, label: str, gpu: Gpu) -> None:
        self.session.doing = f"nvmlDeviceGetMigMode of GPU {label}"
        before, partitioned = self._partitioned.get(label), queries.is_partitioned(gpu)
        if partitioned is not None:
            self._partitioned[label] = partitioned
            if before is not None and partitioned != before:
                self._ask_anew(label, gpu)  # whoever splits a GPU changes its answers
        if not self._partitioned.get(label):
            self._instances.pop(label, None)
            return
        try:
            found = queries.instances(gpu)
        except RefusedError as error:
            if error.meaning is Meaning.LOST:
                raise
            return  # those that were there are still asked
        known = self._instances.get(label, {})
        self._instances[label] = {}
        for identity, instance in found:
            device = known.get(identity)
            if device is None or device.gpu.labels != instance.labels:
                device = Device(instance, queries.MIG)
            device.gpu = instance
            self._instances[label][identity] = device

    def _report(self) -> dict[str, str | None]:
        """Join what the devices say: a metric is measured when one GPU gives it, and the others are named."""
        report: dict[str, str | None] = {}
        said = {label: device.report() for label, device in self._devices.items()}
        for metrics in said.values():
            for metric, reason in metrics.items():
                report[metric] = None if reason is None or report.get(metric, reason) is None else reason
        for label, metrics in said.items():
            unknown = {
                metric: reason for metric, reason in metrics.items() if reason is not None and not report[metric]
            }
            report.update({series(metric, gpu=label): reason for metric, reason in unknown.items()})
        report.update({series("gpu_info", gpu=label): reason for label, reason in self.session.lost.items()})
        if self._with_processes:
            report.update({metric: _NO_MIG for query in queries.MIG for metric, _ in query.gives})
            for instances in self._instances.values():
                for device in instances.values():
                    report.update(device.report())
        return report


def open_session(nvml: Nvml | None = None) -> NvmlSession:
    """Return a session that was not started yet, over ``nvml`` or this machine's; without a driver it is absent."""
    try:
        return NvmlSession(nvml or load_nvml())
    except AbsentError as error:
        return NvmlSession(None, absent=error)
