"""Scalars of a training loop and log records, as nodes of Fed-BioMed 4.4 send them, as messages of ours."""

from __future__ import annotations

import time
from collections import OrderedDict

from fedmon.common.clock import utc_now
from fedmon.common.metrics.series import series
from fedmon.common.wire import fedbiomed4
from fedmon.common.wire.messages import LogRecord
from fedmon.common.wire.samples import AddScalar, SampleBatch

MAX_STREAMS = 10_000
MAX_TEXT = 16_384
MAX_NAME = 256
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class RoundScalar(AddScalar, frozen=True, kw_only=True, tag="add_scalar"):
    """Scalars of one iteration of a training round, with all that Fed-BioMed says about them."""

    train: bool
    test: bool
    test_on_local_updates: bool
    test_on_global_updates: bool
    total_samples: int
    batch_samples: int
    num_batches: int
    num_samples_trained: int | None

    @property
    def phase(self) -> str:
        """Which part of a round it belongs to."""
        if self.test_on_global_updates:
            return "test-global"
        if self.test_on_local_updates:
            return "test-local"
        return "test" if self.test else "train"


def scalar_of(payload: bytes) -> RoundScalar:
    """Read scalars; ``t`` is when they arrived. Raises InvalidMessageError."""
    told = fedbiomed4.decode_scalar(payload)
    return RoundScalar(
        node_id=told.node_id,
        researcher_id=told.researcher_id,
        job_id=told.job_id,
        metric={name: _number(value) for name, value in told.metric.items()},
        iteration=told.iteration,
        epoch=told.epoch,
        t=time.time(),
        train=told.train,
        test=told.test,
        test_on_local_updates=told.test_on_local_updates,
        test_on_global_updates=told.test_on_global_updates,
        total_samples=told.total_samples,
        batch_samples=told.batch_samples,
        num_batches=told.num_batches,
        num_samples_trained=told.num_samples_trained,
    )


def log_record_of(payload: bytes) -> LogRecord:
    """Read a log record; its time is when it arrived, as its own names no zone. Raises InvalidMessageError."""
    told, text = fedbiomed4.decode_log(payload)
    return LogRecord(
        node_id=told.node_id,
        boot=0,
        time=utc_now(),
        level=told.level if told.level in LEVELS else "INFO",  # type: ignore[arg-type]  # one of the words just named
        logger=text.name[:MAX_NAME],
        msg=text.message[:MAX_TEXT],
    )


class Rounds:
    """Numbers scalars as samples of one stream for each job of each node; belongs to one thread."""

    def __init__(self) -> None:
        self._next: OrderedDict[tuple[str, str], int] = OrderedDict()

    def samples_of(self, scalar: RoundScalar) -> SampleBatch:
        """Return scalars as one sample, at the time of its arrival."""
        stream = f"job-{scalar.job_id}"[:MAX_NAME]
        key = (scalar.node_id, stream)
        number = self._next.pop(key, 0)
        self._next[key] = number + 1
        if len(self._next) > MAX_STREAMS:
            self._next.popitem(last=False)
        return SampleBatch(
            node_id=scalar.node_id,
            boot=0,
            stream=stream,
            seq=number,
            t=[scalar.t or 0.0],
            mono=[time.monotonic()],
            m={series(name, phase=scalar.phase): [value] for name, value in scalar.metric.items()},
        )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
