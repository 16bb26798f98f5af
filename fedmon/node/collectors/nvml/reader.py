"""The GPUs of this machine: NVML on one thread, its devices, and a reading of one lane."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from fedmon.common.actor import Actor
from fedmon.common.clock import Deadline
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Why
from fedmon.node.collectors.files import Reasons, Values, reported
from fedmon.node.collectors.nvml import queries
from fedmon.node.collectors.nvml.library import Nvml, RefusedError, load_nvml
from fedmon.node.collectors.nvml.processes import GpuProcesses, GpuUse, ProcessTable
from fedmon.node.collectors.nvml.queries import Gpu, Labels, Query

logger = logging.getLogger(__name__)

RETRY_S = 60.0
HANG_S = 2.0
"""A call that takes longer hangs: all GPUs are left out until it returns."""
_END_S = 0.5
_ENERGY = "gpu_energy_joules_total"
_NO_MIG = f"{Why.UNSUPPORTED.value}: no GPU is split into MIG instances"
_NO_NUMBER = f"{Why.UNSUPPORTED.value}: the driver has no value for it"


class _Asking(NamedTuple):
    """The call under way."""

    call: str
    since: float


class NvmlSession:
    """NVML, started once, with its GPUs, and their energy and processes for other collectors.

    One thread, ``fedmon-gpu``, makes all calls of NVML; one that hangs holds up all GPUs. `gpus`, `ask`, `lose` and
    `keep` belong to the thread, all other methods are safe from any thread and never wait for NVML. A GPU keeps its
    label, the index under which it was listed first. NVML is started again only after a GPU was lost. ``absent`` says
    why there is no GPU, and then NVML is not tried again.
    """

    def __init__(
        self,
        nvml: Nvml | None,
        *,
        absent: CollectorUnavailableError | None = None,
        retry_s: float = RETRY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml, self._retry_s, self._monotonic = nvml, retry_s, monotonic
        self.absent = absent or (None if nvml else CollectorUnavailableError(Why.NOT_FOUND, "NVML"))
        self._lock = threading.Lock()
        self._users: set[object] = set()
        self._actor: Actor | None = None
        self._asking: _Asking | None = None
        self.starts = 0
        self.lost: dict[str, str] = {}
        self._gpus: dict[str, Gpu] | None = None
        self._running: Nvml | None = None
        self._labels: dict[str, str] = {}
        self._problem: CollectorUnavailableError | None = None
        self._restart_at: float | None = None
        self._energy: Mapping[str, float] = {}
        self._processes: ProcessTable | None = None
        self._described: list[dict[str, Any]] = []
        self._patience: tuple[Instant, Deadline] | None = None

    def gpu_energy(self) -> dict[str, float] | None:
        """Return the energy counter of each GPU in joules, as of the last reading; None while a call hangs.

        A counter goes back to 0 when the driver is loaded anew. Counters and `processes` are of the same reading, which
        is that of the tick before if readings take long.
        """
        if self.hang():
            return None
        return {} if self._gpus is None else dict(self._energy)

    def processes(self) -> ProcessTable | None:
        """Return the processes on the GPUs, as of the last reading; None while NVML does not answer."""
        return None if self._gpus is None or self.hang() else self._processes

    def hardware(self) -> list[dict[str, Any]]:
        """Describe each GPU, without its serial number; made at each start of NVML."""
        return self._described

    def enter(self, user: object) -> None:
        """Start the thread, unless another collector did."""
        with self._lock:
            self._users.add(user)
            if self._actor is None:
                self._actor = Actor("fedmon-gpu")
                self._actor.start()

    def leave(self, user: object) -> None:
        """Shut NVML down when the last collector leaves; a thread whose call hangs is left behind."""
        with self._lock:
            self._users.discard(user)
            if self._users or (actor := self._actor) is None:
                return
            self._actor = None
        actor.post(self._end)
        if not actor.close(timeout_s=_END_S):
            call = self._asking.call if self._asking else "a call"
            logger.warning("the thread fedmon-gpu was left behind: it is stuck in %s", call)

    def submit(self, read: Callable[[], Round]) -> Future[Round]:
        """Read on the thread."""
        result: Future[Round] = Future()

        def run() -> None:
            try:
                result.set_result(read())
            except Exception as error:  # noqa: BLE001 - handed to the collector
                result.set_exception(error)

        if self._actor is not None:
            self._actor.post(run)
        return result

    def asked_s(self) -> float:
        """Return how long the present call has taken: one that is slow holds up the first collector alone."""
        asking = self._asking
        return 0.0 if asking is None else self._monotonic() - asking.since

    def left_s(self, tick: Instant, patience_s: float) -> float:
        """Return the rest of a tick's patience, which its collectors share; for the sampler's thread."""
        if self._patience is None or self._patience[0] != tick:
            self._patience = tick, Deadline(patience_s)
        return self._patience[1].left_s()

    def hang(self) -> str:
        """Describe a call that takes too long, else return an empty text."""
        asking, now = self._asking, self._monotonic()
        if asking is None or now - asking.since < HANG_S:
            return ""
        return f"no answer for {now - asking.since:.1f} s: {asking.call}"

    # --- on the thread -----------------------------------------------------------------------------------------------

    def gpus(self) -> Mapping[str, Gpu]:
        """Return the GPUs by label, lost ones included; start NVML if it does not run or a retry is due.

        Raises CollectorUnavailableError if there is no GPU or NVML cannot be started.
        """
        is_due = self._restart_at is None or self._monotonic() >= self._restart_at
        if is_due and (self._gpus is None or self._restart_at is not None) and self._nvml:
            self._begin(self._nvml)
        if self.absent is not None:
            raise self.absent
        if self._gpus is None:
            raise self._problem or CollectorUnavailableError(Why.FAILED, "NVML")
        return self._gpus

    @contextlib.contextmanager
    def ask(self, call: str, gpu: str = "") -> Iterator[None]:
        """Name the call that the block makes."""
        self._asking = _Asking(f"{call} of GPU {gpu}" if gpu else call, self._monotonic())
        try:
            yield
        finally:
            self._asking = None

    def lose(self, label: str, reason: str) -> None:
        """Leave out a GPU that fell off the bus, until NVML is started again."""
        logger.warning("GPU %s is lost: %s", label, reason)
        self.lost[label] = reason
        self._retry_later()

    def keep(self, *, energy: Mapping[str, float], uses: Mapping[str, GpuUse]) -> None:
        """Keep the result of `gpu_energy` and `processes`."""
        before, self._energy = self._processes, energy
        self._processes = ProcessTable(before.number + 1 if before else 1, uses)

    def _retry_later(self) -> None:
        self._restart_at = self._restart_at or self._monotonic() + self._retry_s

    def _begin(self, nvml: Nvml) -> None:
        self._end()
        self._restart_at = None
        try:
            with self.ask("nvmlInit"):
                nvml.call("nvmlInit")
                self._running = nvml
                count = nvml.call("nvmlDeviceGetCount")
        except RefusedError as error:
            self._end()
            if not self.starts and error.error in ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "FUNCTION_NOT_FOUND"):
                self.absent = CollectorUnavailableError(Why.NOT_FOUND, error.reason.partition(": ")[2])
                return
            self._problem = error
            self._retry_later()
            return
        if count == 0 and not self._labels:
            self._end()
            self.absent = CollectorUnavailableError(Why.NOT_FOUND, "no GPU: NVML lists none")
            return
        self.starts += 1
        with self.ask("the list of GPUs"):
            self._list(nvml, count)
        if self.lost:
            self._retry_later()

    def _end(self) -> None:
        self._gpus = None
        if self._running is not None:
            nvml, self._running = self._running, None
            with contextlib.suppress(RefusedError), self.ask("nvmlShutdown"):
                nvml.call("nvmlShutdown")

    def _list(self, nvml: Nvml, count: int) -> None:
        self._gpus, refused = {}, dict[str, str]()
        for index in range(count):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
                label = self._label(nvml, handle, index)
                self._gpus[label] = Gpu(nvml, handle, {"gpu": label})
            except RefusedError as error:
                refused[str(index)] = error.reason
        gone = {label: f"{Why.NOT_FOUND.value}: GPU {label} is no longer listed" for label in self._labels.values()}
        self.lost = {label: why for label, why in (refused | gone).items() if label not in self._gpus}
        self._described = [queries.describe(gpu) for gpu in self._gpus.values()]

    def _label(self, nvml: Nvml, handle: object, index: int) -> str:
        identity = nvml.call("nvmlDeviceGetUUID", handle)
        if identity not in self._labels:
            taken = set(self._labels.values())
            free = (str(number) for number in range(index, index + len(taken) + 1))
            self._labels[identity] = next(label for label in free if label not in taken)
        return self._labels[identity]


class Device:
    """A GPU or MIG instance with its queries; one that it refuses for good is not asked again."""

    def __init__(self, gpu: Gpu, asked: Iterable[Query]) -> None:
        self.gpu = gpu
        self._queries = {query.name: query for query in asked}
        self._gave: dict[str, tuple[str, ...]] = {}
        self._problems: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._keys: dict[tuple[str, ...], str] = {}

    def answers(self, session: NvmlSession) -> Iterator[tuple[Values, str]]:
        """Ask every query once; yield its values, and the reason of a None. Raises RefusedError for a lost device."""
        for name in list(self._queries):
            yield self._answer(name, session)

    def report(self) -> Mapping[str, str | None]:
        """Map each metric that was asked for, as a series, to None if the device gives it, else to the reason."""
        found: dict[str, str | None] = dict(self._refused)
        for name, query in self._queries.items():
            problem = self._problems.get(name)
            for metric, _ in query.gives:
                found[metric] = None if problem is None or found.get(metric, problem) is None else problem
        return {self._key(metric, {}): reason for metric, reason in found.items()}

    def _answer(self, name: str, session: NvmlSession) -> tuple[Values, str]:
        query = self._queries[name]
        try:
            with session.ask(query.name, self.gpu.labels["gpu"]):
                answer = _answered(query, self.gpu)
        except RefusedError as error:
            if error.is_lost:
                raise
            if error.is_final and name not in self._gave:
                self._refused = {metric: error.reason for metric, _ in query.gives} | self._refused
                if query.otherwise is None:
                    del self._queries[name]
                    return {}, ""
                self._queries[name] = query.otherwise
                return self._answer(name, session)
            self._problems[name] = error.reason
            keys = self._gave.get(name) or [self._key(metric, own) for metric, own in query.gives if own is not None]
            return dict.fromkeys(keys), error.reason
        found = {self._key(metric, labels): number for metric, labels, number in answer}
        self._gave[name] = tuple(found)
        self._problems.pop(name, None)
        return found, _NO_NUMBER

    def _key(self, metric: str, labels: Labels) -> str:
        own = metric, *labels.values()  # a metric always has the same labels
        if own not in self._keys:
            self._keys[own] = series(metric, **self.gpu.labels, **labels)
        return self._keys[own]


def _answered(query: Query, gpu: Gpu) -> list[queries.Value]:
    """Return an answer. Raises RefusedError, also for one of another shape."""
    try:
        return list(query.read(gpu))
    except (TypeError, AttributeError, ValueError, LookupError) as error:
        raise RefusedError(query.name, f"{type(error).__name__}: {error}") from None


class Round(NamedTuple):
    """One reading of all GPUs; ``report`` maps each metric, or a series of it, to None or the reason."""

    values: Mapping[str, float | None]
    reasons: Mapping[str, str]
    report: Mapping[str, str | None]


class LaneReader:
    """Asks every GPU the queries of one lane, on the session's thread.

    ``with_processes`` also lists processes, MIG instances and energy for others.
    """

    def __init__(self, session: NvmlSession, asked: Iterable[Query], *, with_processes: bool = False) -> None:
        self.session, self._queries, self._with_processes = session, tuple(asked), with_processes
        self._start = 0
        self._devices: dict[str, Device] = {}
        self._processes: dict[str, GpuProcesses] = {}
        self._instances: dict[str, dict[str, Device]] = {}
        self._gave: dict[str, tuple[str, ...]] = {}

    def read(self) -> Round:
        """Ask everything once. Raises CollectorUnavailableError if no GPU can be asked."""
        session = self.session
        gpus = session.gpus()
        if session.starts != self._start:
            self._renew(gpus)
        values: Values = {}
        reasons: Reasons = {}
        for label, gpu in gpus.items():
            if label in session.lost:
                continue
            try:
                own, why = self._read(label, gpu)
            except RefusedError as error:
                session.lose(label, error.reason)
            else:
                self._gave[label] = tuple(own)
                values |= own
                reasons |= why
        lost = dict(session.lost)
        for label in self._gave.keys() & lost.keys():
            values.update(dict.fromkeys(self._gave[label]))
            reasons.update(dict.fromkeys(self._gave[label], lost[label]))
        if self._with_processes:
            uses = {
                label: GpuUse(None, None, lost[label], lost[label]) if label in lost else processes.take()
                for label, processes in self._processes.items()
            }
            counters = {label: values.get(series(_ENERGY, gpu=label)) for label in gpus}
            session.keep(energy={label: each for label, each in counters.items() if each is not None}, uses=uses)
        return Round(values, reasons, self._report(lost))

    def _renew(self, gpus: Mapping[str, Gpu]) -> None:
        """Ask all GPUs everything again after a start of NVML; series of a GPU that is gone are still known."""
        self._start = self.session.starts
        self._instances = {}
        for label, gpu in gpus.items():
            processes = self._processes.setdefault(label, GpuProcesses())
            own = processes.queries if self._with_processes else ()
            self._devices[label] = Device(gpu, (*self._queries, *own))

    def _read(self, label: str, gpu: Gpu) -> tuple[Values, Reasons]:
        if self._with_processes:
            with self.session.ask("nvmlDeviceGetMigMode", label), contextlib.suppress(RefusedError):
                self._find_instances(label, gpu)
        values: Values = {}
        reasons: Reasons = {}
        for device in (self._devices[label], *self._instances.get(label, {}).values()):
            for found, reason in device.answers(self.session):
                values |= found
                reasons |= {key: reason for key, number in found.items() if number is None}
        return values, reasons

    def _find_instances(self, label: str, gpu: Gpu) -> None:
        partitioned = queries.is_partitioned(gpu)
        if partitioned is None:
            return  # the known instances are still asked
        known, found = self._instances.get(label, {}), dict[str, Device]()
        for identity, instance in queries.instances(gpu) if partitioned else ():
            device = known.get(identity)
            if device is None or device.gpu.labels != instance.labels:
                device = Device(instance, queries.MIG)
            device.gpu, found[identity] = instance, device
        self._instances[label] = found

    def _report(self, lost: Mapping[str, str]) -> dict[str, str | None]:
        """Join the reports of the devices: a metric is measured if one GPU gives it; the others are named."""
        instances = [device for found in self._instances.values() for device in found.values()]
        said = {key: why for device in (*self._devices.values(), *instances) for key, why in device.report().items()}
        gaps = {key: reason for key, reason in said.items() if reason is not None}
        report = reported(said.keys() - gaps.keys(), gaps)
        report |= {series("gpu_info", gpu=label): reason for label, reason in lost.items()}
        if self._with_processes and not instances:
            report |= {metric: _NO_MIG for query in queries.MIG for metric, _ in query.gives}
        return report


def open_session(nvml: Nvml | None = None) -> NvmlSession:
    """Return a session over ``nvml`` or this machine's NVML; without a driver it is absent."""
    try:
        return NvmlSession(nvml or load_nvml())
    except CollectorUnavailableError as error:
        return NvmlSession(None, absent=error)
