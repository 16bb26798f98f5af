"""The one NVML session of the process: started once, handles kept, started again only when a GPU was lost."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from fedmon.node.collectors.base import CollectorUnavailableError, Why
from fedmon.node.collectors.nvml.library import AbsentError, Meaning, Nvml, RefusedError, load_nvml, text
from fedmon.node.collectors.nvml.processes import GpuUse, ProcessTable
from fedmon.node.collectors.nvml.query import Gpu

logger = logging.getLogger(__name__)

RETRY_S = 10.0
_MAX_RETRY_S = 300.0
_FRESH_S = 2.0


class Found(NamedTuple):
    """The GPUs of one start of NVML; ``number`` counts the starts. ``lost`` maps the label of a GPU to the reason."""

    number: int
    gpus: Mapping[str, Gpu]
    lost: Mapping[str, str]


class NvmlSession:
    """Hands the GPUs of this machine out to those who read them, and keeps what they found for others.

    ``round`` and ``leave`` call NVML and may hang: they belong to the readers' threads. Every other method is safe
    from any thread and never waits for NVML. A GPU keeps its label, the index under which it was seen first, as long
    as the process runs. ``nvml`` None stands for ``absent``, the reason why there is none.
    """

    def __init__(
        self,
        nvml: Nvml | None,
        *,
        absent: AbsentError | None = None,
        retry_s: float = RETRY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self.absent = absent or (None if nvml else AbsentError(Why.NOT_FOUND, "NVML"))
        self._retry_s, self._delay_s, self._monotonic = retry_s, retry_s, monotonic
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._problem: CollectorUnavailableError | None = None
        self._labels: dict[str, str] = {}
        self._is_started = False
        self._restart_at: float | None = None
        self._begun = -math.inf
        self._readers = self._rounds = self._starts = 0
        self._energy: tuple[float, Mapping[str, float]] = (0.0, {})
        self._processes: tuple[float, ProcessTable | None] = (0.0, None)
        self._hardware: list[dict[str, Any]] = []

    # --- for everybody -----------------------------------------------------------------------------------------------

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

    # --- for the readers ---------------------------------------------------------------------------------------------

    def keep_energy(self, energy: Mapping[str, float]) -> None:
        """Keep what ``gpu_energy`` returns."""
        self._energy = (self._monotonic(), energy)

    def keep_processes(self, gpus: Mapping[str, GpuUse]) -> None:
        """Keep what ``processes`` returns."""
        before = self._processes[1]
        table = ProcessTable(before.number + 1 if before else 1, gpus)
        self._processes = (self._monotonic(), table)

    def keep_hardware(self, hardware: list[dict[str, Any]]) -> None:
        """Keep what ``hardware`` returns."""
        self._hardware = hardware

    def enter(self) -> None:
        """Say that one reader more uses the session."""
        with self._lock:
            self._readers += 1

    def leave(self) -> None:
        """Say that a reader ended; the last one ends NVML."""
        with self._lock:
            self._readers -= 1
            if self._readers == 0 and self._rounds == 0:
                self._end()

    @contextlib.contextmanager
    def round(self) -> Iterator[Found]:
        """Lend the GPUs for one round of questions; starts NVML when it does not run, or must be started anew.

        Raises AbsentError when there is no GPU, CollectorUnavailableError when NVML cannot be started.
        """
        with self._lock:
            if self._found is None or (self._restart_at is not None and self._rounds == 0):
                self._begin()
            if self._found is None:
                raise self._problem or CollectorUnavailableError(Why.FAILED, "NVML")
            found, self._rounds = self._found, self._rounds + 1
        try:
            yield found
        except RefusedError as error:
            if error.meaning is Meaning.ENDED:
                self._restart_soon(at_once=True)
            raise
        finally:
            with self._lock:
                self._rounds -= 1

    def lose(self, label: str, reason: str) -> None:
        """Leave a GPU alone that fell off the bus, until NVML was started again."""
        with self._lock:
            found = self._found
            if found is None or label in found.lost:
                return
            logger.warning("GPU %s is lost: %s", label, reason)
            self._found = found._replace(lost={**found.lost, label: reason})
        self._restart_soon(at_once=False)

    def _restart_soon(self, *, at_once: bool) -> None:
        """Start NVML anew when no reader is in a round: at once when it ran well before, else after a while."""
        with self._lock:
            now = self._monotonic()
            at = now if at_once and now - self._begun >= self._retry_s else now + self._delay_s
            if self._restart_at is None or at < self._restart_at:
                self._restart_at = at

    # --- under the lock ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._nvml is None:
            raise self.absent or AbsentError(Why.NOT_FOUND, "NVML")
        if self._restart_at is not None and self._monotonic() < self._restart_at:
            return
        # Ever rarer while it is of no use, and soon again after NVML ran well for long.
        well = self._monotonic() - self._begun > 10 * self._delay_s
        self._delay_s = self._retry_s if well else min(self._delay_s * 2, _MAX_RETRY_S)
        self._end()
        self._restart_at = None
        try:
            self._nvml.call("nvmlInit")
            self._is_started = True
            count = self._nvml.call("nvmlDeviceGetCount")
        except RefusedError as error:
            self._failed(error)
            return
        if count == 0 and not self._labels:
            self._end()
            self.absent = AbsentError(Why.NOT_FOUND, "no GPU: NVML lists none")
            raise self.absent
        self._starts, self._begun = self._starts + 1, self._monotonic()
        self._found = self._listed(self._nvml, count if isinstance(count, int) else 0)
        if self._found.lost:
            self._restart_at = self._begun + self._delay_s

    def _failed(self, error: RefusedError) -> None:
        """Note why NVML cannot be started; for good, when it never could and the driver is not there."""
        self._end()
        if not self._starts and error.error in ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "FUNCTION_NOT_FOUND"):
            self.absent = AbsentError(Why.NOT_FOUND, error.reason.partition(": ")[2])
            raise self.absent
        self._problem = error
        self._restart_at = self._monotonic() + self._delay_s

    def _end(self) -> None:
        self._found = None
        if self._is_started and self._nvml is not None:
            self._is_started = False
            with contextlib.suppress(RefusedError):
                self._nvml.call("nvmlShutdown")

    def _listed(self, nvml: Nvml, count: int) -> Found:
        gpus: dict[str, Gpu] = {}
        lost: dict[str, str] = {}
        for index in range(count):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
                label = self._label(nvml, handle, index)
            except RefusedError as error:
                if str(index) not in self._labels.values():
                    lost[str(index)] = error.reason
                continue
            gpus[label] = Gpu(nvml, handle, (("gpu", label),))
        for label in self._labels.values():
            if label not in gpus:
                lost[label] = f"{Why.NOT_FOUND.value}: GPU {label} is no longer listed"
        return Found(self._starts, gpus, lost)

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


def open_session(nvml: Nvml | None = None) -> NvmlSession:
    """Return a session that was not started yet, over ``nvml`` or this machine's; without a driver it is absent."""
    try:
        return NvmlSession(nvml or load_nvml())
    except AbsentError as error:
        return NvmlSession(None, absent=error)
