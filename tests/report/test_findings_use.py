"""What is said of CPUs, memory and GPUs, at the borders of each limit."""

from __future__ import annotations

import msgspec
import pytest

from fedmon.report.findings import Severity, find
from fedmon.report.findings.cpu import cpu_efficiency
from fedmon.report.findings.memory import memory
from tests.report.cases import GIB, case, cpu, gauge, node, only

FOUR = {"cpus": 4}


def test_what_was_not_measured_is_unknown_with_the_reason_of_the_node() -> None:
    reasons = {
        "job_cpu_user_seconds_total": "no permission: /proc/1/stat",
        "gpu_utilization_ratio": "not found: libnvidia-ml.so.1",
        "job_energy_joules_total": "no permission: energy_uj is for root only",
        "job_cpu_throttled_seconds_total": "unsupported: the job has no separate cgroup",
    }
    findings = {one.name: one for one in find(case(node(job={"job_processes": 1.0}, capabilities=reasons)))}

    assert findings["cpu-efficiency"].text == "Not measured: no permission: /proc/1/stat."
    assert findings["gpu-use"].text == "Not measured: not found: libnvidia-ml.so.1."
    assert findings["energy"].text == "Not measured: no permission: energy_uj is for root only."
    assert findings["cpu-throttling"].text == "Not measured: unsupported: the job has no separate cgroup."
    unknown = ("cpu-efficiency", "gpu-use", "energy", "cpu-throttling")
    assert {findings[name].severity for name in unknown} == {Severity.UNKNOWN}
    assert not any(value == 0 for name in ("cpu-efficiency", "gpu-use") for value in findings[name].figures.values())


def test_ranks_share_memory_only_while_both_ran_as_told() -> None:
    times = {"a": ("12:00:00.000", "12:01:00.000"), "b": ("12:00:59.000", "12:02:00.000"), "c": ("12:02:00.001", None)}
    ranks = []
    for (name, (began, ended)), peak in zip(times.items(), (1, 2, 2.5), strict=True):
        told = {"started": f"2023-11-14T{began}+00:00", "ended": ended and f"2023-11-14T{ended}+00:00"}
        one = node(name, job={"job_memory_peak_bytes": peak * GIB}, document={"method": "command", **told})
        ranks.append(msgspec.structs.replace(one, host=msgspec.structs.replace(one.host, machine="boot a")))

    finding = only(memory(case(*ranks)))

    assert (finding.figures["peak_bytes"], finding.nodes) == (3 * GIB, ("b",))
    assert "peaks of ranks that ran at once on one host are added up" in finding.how


@pytest.mark.parametrize("cpus", [8, 1e12])
def test_one_absurd_sample_asks_for_no_more_cpus_than_there_are(cpus: float) -> None:
    busy = msgspec.structs.replace(gauge("job_cpus_busy", 1.0, high=1e15), levels=((1.0, 0.9), (1e15, 0.1)))
    finding = only(cpu_efficiency(case(node(job={**cpu(1.0), "job_cpus_busy": busy}, document={"cpus": cpus}))))

    assert "In some phases it used all of them" in finding.advice


@pytest.mark.parametrize(
    ("scheduler", "nodes", "line"),
    [
        ("pbs", ("n1",), " For example: #PBS -l ncpus=1"),
        ("oar", ("n1",), " For example: #OAR -l core=1"),
        ("slurm", ("n1",), ""),  # of how many tasks a job is, nobody told
        ("pbs", ("n1", "n2"), ""),
        ("oar", ("n1", "n2"), ""),
    ],
)
def test_a_line_to_copy_is_only_there_where_it_means_the_whole_job(
    scheduler: str, nodes: tuple[str, ...], line: str
) -> None:
    told = FOUR | {"scheduler": scheduler, "nodes": list(nodes)}
    whole = case(*(node(name, job=cpu(0.8), document=told) for name in nodes))
    part = case(node(job=cpu(0.8), document=told))

    for one in (whole, part):
        advice = only(cpu_efficiency(one)).advice
        assert advice.endswith(line)
        assert ("For example" in advice) is bool(line)
