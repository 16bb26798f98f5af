"""Cases for findings, made of totals without any recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmon.common.store.recording import LostRange
from fedmon.report.findings import Case, Finding, Node
from fedmon.report.source import Host
from fedmon.report.totals import ClockStep, Hole, SeriesTotal, StreamTotal

T = 1_700_000_000.0
SECONDS = 1000.0
GIB = 2.0**30
Values = Mapping[str, float | SeriesTotal]
ENDED = {"started": "2023-11-14T22:13:20+00:00", "ended": "2023-11-14T22:30:00+00:00"}


def gauge(name: str, mean: float, *, low: float | None = None, high: float | None = None,
          levels: tuple[tuple[float, float], ...] = ()) -> SeriesTotal:  # fmt: skip
    return SeriesTotal(
        series=name, values=1000, first=mean, first_t=T, last=mean, last_t=T + SECONDS,
        low=mean if low is None else low, high=mean if high is None else high, mean=mean,
        levels=levels,
    )  # fmt: skip


def counter(name: str, increase: float, *, first: float = 0.0, grown_s: float = SECONDS) -> SeriesTotal:
    return SeriesTotal(
        series=name, values=1000 if grown_s else 1, first=first, first_t=T, last=first + increase, last_t=T + grown_s,
        low=first, high=first + increase, mean=first + increase / 2,
        increase=increase, grown_s=grown_s,
    )  # fmt: skip


def stream(name: str, values: Values, *, node_id: str = "n1", samples: int = 1000, hole_seconds: float = 0.0,
           interval_s: float = 1.0, missing: int = 0, steps: tuple[ClockStep, ...] = ()) -> StreamTotal:  # fmt: skip
    holes = (Hole(hole_seconds, T + 10, T + 10 + hole_seconds, missing, 11, 1),) if hole_seconds else ()
    return StreamTotal(
        node_id=node_id, stream=name, boots=1, samples=samples, first_t=T, last_t=T + SECONDS,
        seconds=SECONDS - hole_seconds, interval_s=interval_s, missing=missing, holes=holes, hole_count=len(holes),
        hole_seconds=hole_seconds, clock_steps=steps,
        series={key: _total(key, value) for key, value in values.items()},
    )  # fmt: skip


def node(name: str = "n1", *, job: Values | None = None, host: Values | None = None, user: Values | None = None,
         document: Mapping[str, Any] | None = None, capabilities: Mapping[str, str | None] | None = None,
         hardware: Mapping[str, Any] | None = None, tool: Mapping[str, Any] | None = None,
         lost: Mapping[tuple[str, int], Sequence[LostRange]] | None = None, **of_streams: Any) -> Node:  # fmt: skip
    named = {"host": host, "job-1": job, "user": user}
    streams = {key: stream(key, values, node_id=name, **of_streams)
               for key, values in named.items() if values is not None}  # fmt: skip
    return Node(
        host=Host(node_id=name, name=name, hardware=dict(hardware or {}),
                  capabilities=dict(capabilities or {}), tool=dict(tool or {})),
        streams=streams,
        job=streams.get("job-1"),
        document=dict(document or {}),
        lost=lost or {},
    )  # fmt: skip


def case(*nodes: Node, job: str | None = "1") -> Case:
    return Case(job=job, nodes=nodes, jobs=("1",) if job else ())


def only(finding: Finding | None) -> Finding:
    assert finding is not None
    return finding


def cpu(busy: float) -> Values:
    """What a job leaves that kept so many CPUs busy."""
    return {"job_cpu_user_seconds_total": busy * SECONDS * 0.75, "job_cpu_system_seconds_total": busy * SECONDS * 0.25}


def gpu(number: int, mean: float, idle: float) -> dict[str, float | SeriesTotal]:
    """What a GPU leaves that was used so much, and idle for such a share of the time."""
    name = f'gpu_utilization_ratio{{gpu="{number}"}}'
    return {name: gauge(name, mean, levels=((0.0, idle),))}


def _total(name: str, value: float | SeriesTotal) -> SeriesTotal:
    if isinstance(value, SeriesTotal):
        return value
    bare = name.partition("{")[0]
    if bare.endswith("_total"):
        return counter(name, value)
    return gauge(name, value, levels=((value, 1.0),) if bare == "gpu_utilization_ratio" else ())
