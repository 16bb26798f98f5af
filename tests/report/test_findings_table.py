"""What is said of jobs of many kinds, and what must not be said: the first finding is the one to act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import pytest

from fedmon.report.findings import Node, Severity, find
from tests.report.cases import ENDED, GIB, SECONDS, Values, case, cpu, gauge, gpu, node

P, W, N, G, U = Severity
TOLD: dict[str, Any] = {
    **ENDED, "job_id": "1", "exit_code": 0, "cpus": 4, "memory_limit_bytes": 16 * GIB, "scheduler": "slurm",
    "method": "command", "time_limit_s": 7200,
}  # fmt: skip
NO_GPUS: dict[str, Any] = {"gpus": []}
SOME, FULL = (f'job_pressure_seconds_total{{resource="cpu",kind="{kind}"}}' for kind in ("some", "full"))
IO = 'job_pressure_seconds_total{resource="io",kind="full"}'
BAD = frozenset({P, W})


def modes(**shares: float) -> Values:
    """CPU time of a machine of 4 CPUs by mode."""
    rest = 1 - sum(shares.values())
    return {f'host_cpu_seconds_total{{mode="{mode}"}}': 4 * SECONDS * share
            for mode, share in (shares | {"idle": rest}).items()}  # fmt: skip


def busy(*levels: tuple[float, float]) -> Values:
    """A job that kept so many CPUs busy for such shares of the time."""
    mean, high = sum(value * share for value, share in levels), max(value for value, _ in levels)
    total = msgspec.structs.replace(gauge("job_cpus_busy", mean, high=high), levels=tuple(sorted(levels)))
    return {**cpu(mean), "job_cpus_busy": total}


def memory(share: float) -> Values:
    return {"job_memory_peak_bytes": share * 16 * GIB, "job_memory_rss_bytes": share * 16 * GIB}


def job(of_job: Values | None = None, of_host: Values | None = None, *, name: str = "n1",
        hardware: Mapping[str, Any] = NO_GPUS, samples: int = 1000, interval_s: float = 1.0,
        **told: Any) -> Node:  # fmt: skip
    """A job that is well but for what is said."""
    well: Values = {**busy((3.6, 1.0)), **memory(0.5), "job_cpu_throttled_seconds_total": 0.0}
    document = {key: value for key, value in (TOLD | told).items() if value is not None}
    return node(name, job={**well, **(of_job or {})}, host={**modes(user=0.9), **(of_host or {})},
                document=document, hardware=hardware, samples=samples, interval_s=interval_s)  # fmt: skip


class Job(NamedTuple):
    """The nodes of a job, what must be told of it with its severity, of what nothing bad, and what is advised."""

    nodes: tuple[Node, ...]
    must: Mapping[str, Severity]
    well: frozenset[str] = frozenset({"cpu-efficiency", "memory-peak", "io-wait", "ending"})
    first: str = ""
    advice: str = ""


GPUS: dict[str, Any] = {"gpus": [{"gpu": "0"}, {"gpu": "1"}]}
GIVEN: dict[str, Any] = {"gpus": ["0", "1"]}
ALL = frozenset({"cpu-efficiency", "memory-peak", "io-wait", "ending", "time-limit", "cpu-throttling", "gaps"})
JOBS: dict[str, Job] = {
    "well": Job((job(),), {"cpu-efficiency": G, "memory-peak": G, "ending": G, "gaps": G}, ALL),
    "serial on four CPUs": Job((job(busy((1.0, 1.0))),), {"cpu-efficiency": W}, ALL - {"cpu-efficiency"},
                               "cpu-efficiency"),
    "serial on one CPU": Job((job(busy((1.0, 1.0)), cpus=1),), {"cpu-efficiency": G}, ALL),
    "idle": Job((job(busy((0.05, 1.0))),), {"cpu-efficiency": P}, ALL - {"cpu-efficiency"}, "cpu-efficiency"),
    "in phases that use all": Job((job(busy((4.0, 0.4), (0.0, 0.6))),), {"cpu-efficiency": N}, ALL,
                                  advice="fewer would make it slower"),
    "in phases too short to be seen": Job(
        (job({**busy((0.76, 1.0)), "job_threads": 9.0}, cpus=8, interval_s=30.0),), {"cpu-efficiency": N}, ALL,
        advice="Measure more often before asking for fewer: 30.0 s between samples"),
    "in phases that use half": Job((job(busy((2.0, 0.5), (0.1, 0.5)), cpus=8),), {"cpu-efficiency": P},
                                   ALL - {"cpu-efficiency"}),
    "one short peak": Job((job(busy((1.0, 0.99), (4.0, 0.01))),), {"cpu-efficiency": W}, ALL - {"cpu-efficiency"}),
    "starved by others": Job((job({**busy((1.0, 1.0)), SOME: 340.0, FULL: 230.0}),), {"cpu-efficiency": W},
                             ALL - {"cpu-efficiency"}),
    "parallel threads that wait for each other": Job((job({SOME: 400.0, FULL: 10.0}),), {"cpu-efficiency": G}, ALL),
    "more CPUs than given": Job((job(busy((4.0, 1.0)), cpus=2),), {"cpu-efficiency": N}, ALL),
    "all CPUs": Job((job(busy((4.0, 1.0))),), {"cpu-efficiency": G}, ALL),
    "CPUs not known": Job((job(busy((1.0, 1.0)), of_host={"host_cpu_count": 64.0}, cpus=None),),
                          {"cpu-efficiency": N}, ALL),
    "quota": Job((job({"job_cpu_throttled_seconds_total": 2000.0}),), {"cpu-throttling": P}, ALL - {"cpu-throttling"},
                 "cpu-throttling"),
    "little quota": Job((job({"job_cpu_throttled_seconds_total": 20.0}),), {"cpu-throttling": G}, ALL),
    "I/O bound": Job((job({**busy((0.5, 1.0)), IO: 300.0}, modes(user=0.1, iowait=0.5)),),
                     {"io-wait": P, "pressure-io": W, "cpu-efficiency": P}, frozenset({"memory-peak", "ending"})),
    "beside others that wait for disks": Job((job(of_host=modes(user=0.4, iowait=0.5)), job({IO: 300.0}, name="n2")),
                                             {"io-wait": N, "pressure-io": W}, ALL),
    "reads a little": Job((job(of_host=modes(user=0.9, iowait=0.05)),), {"io-wait": G}, ALL),
    "leaking": Job((job(memory(0.97)),), {"memory-peak": W}, ALL - {"memory-peak"}, "memory-peak"),
    "memory asked for in vain": Job((job(memory(0.1)),), {"memory-peak": N}, ALL),
    "killed for memory": Job((job({**memory(1.0), "job_memory_oom_kills_total": 1.0}, exit_code=137),),
                             {"oom-kills": P, "ending": P, "memory-peak": W}, frozenset({"cpu-efficiency", "gaps"})),
    "failed": Job((job(exit_code=1),), {"ending": P}, ALL - {"ending"}, "ending"),
    "end not known": Job((job(exit_code=None, ended=None),), {"ending": U}, ALL),
    "idle GPU": Job((job(of_host=gpu(0, 0.9, 0.0) | gpu(1, 0.0, 1.0), hardware=GPUS, **GIVEN),),
                    {"gpu-use": P}, ALL, "gpu-use"),
    "GPU that waits for input": Job((job(of_host=gpu(0, 0.4, 0.5), hardware=GPUS, gpus=["0"]),), {"gpu-use": W}, ALL,
                                    "gpu-use"),
    "hardly used GPU": Job((job(of_host=gpu(0, 0.1, 0.3), hardware=GPUS, gpus=["0"]),), {"gpu-use": W}, ALL, "gpu-use"),
    "busy GPUs": Job((job(of_host=gpu(0, 0.9, 0.0) | gpu(1, 0.88, 0.0), hardware=GPUS, **GIVEN),), {"gpu-use": G}, ALL),
    "unbalanced": Job((job(busy((3.8, 1.0))), job(busy((0.4, 1.0)), name="n2")), {"imbalance": W},
                      ALL - {"cpu-efficiency"}),
    "balanced": Job((job(), job(name="n2")), {"imbalance": G}, ALL),
    "a node is missing": Job((job(nodes=["n1", "n9"]),), {"absent-nodes": P}, ALL, "absent-nodes"),
    "near its time limit": Job((job(time_limit_s=1010),), {"time-limit": W}, ALL - {"time-limit"}, "time-limit"),
    "shorter than the first sample": Job((node(document=TOLD, hardware=NO_GPUS),), {"samples": N, "ending": G}, ALL),
    "of a few samples": Job((job(busy((1.0, 1.0)), samples=4),), {"samples": N, "cpu-efficiency": N},
                            ALL | {"samples"}),
    "of a few samples, CPUs not known": Job((job(busy((1.0, 1.0)), of_host={"host_cpu_count": 64.0}, cpus=None,
                                                  samples=4),), {"samples": N, "cpu-efficiency": N}, ALL),
    "of a few samples, all CPUs": Job((job(busy((4.0, 1.0)), samples=4),), {"samples": N, "cpu-efficiency": N}, ALL),
    "on a machine that others share": Job((job(of_host=modes(user=0.7, steal=0.2)),), {"steal": W}, ALL, "steal"),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_a_job_gets_the_findings_that_it_must_and_none_that_it_must_not(name: str) -> None:
    nodes, must, well, first, advice = JOBS[name]
    findings = find(case(*nodes))
    found = {one.name: one for one in findings}

    assert {key: found[key].severity for key in must if key in found} == dict(must)
    assert [one.name for one in findings if one.name in well and one.severity in BAD] == []
    assert not first or findings[0].name == first
    assert any(advice in one.advice for one in findings)
    assert "samples" not in found or not any(one.advice for one in findings if one.name == "cpu-efficiency")
    assert all(one.text.startswith(("Not measured", "How the job ended")) for one in findings if one.severity is U)
