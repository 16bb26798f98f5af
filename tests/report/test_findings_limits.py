"""What is said at the borders of each limit, and of what could not be measured."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fedmon.report.findings import Severity, completeness, find, run, stalls
from fedmon.report.findings import gpu as gpus
from fedmon.report.findings.cpu import cpu_efficiency
from fedmon.report.findings.memory import memory
from tests.report.cases import ENDED, GIB, case, cpu, gauge, node, only

W, G, N, P, U = Severity.WARNING, Severity.GOOD, Severity.NOTE, Severity.PROBLEM, Severity.UNKNOWN


@pytest.mark.parametrize(
    ("resource", "kind", "share", "is_told"),
    [("io", "full", 0.1, True), ("io", "full", 0.099, False), ("io", "some", 0.9, False), ("memory", "full", 0.1, True),
     ("cpu", "some", 0.5, True), ("cpu", "some", 0.49, False)],
)  # fmt: skip
def test_pressure_is_told_from_its_limit_on(resource: str, kind: str, share: float, is_told: bool) -> None:
    of_host = {f'host_pressure_seconds_total{{resource="{resource}",stalled="{kind}"}}': share * 1000}
    of_job = {f'job_pressure_seconds_total{{resource="{resource}",kind="{kind}"}}': share * 1000}

    told = stalls.pressure(case(node(job=of_job), node("n2", job={}, host=of_host)), resource)
    assert bool(told) is is_told
    assert told is None or ("of the job waited" in told.text and told.severity is W)

    of_others = stalls.pressure(case(node(job={}, host=of_host)), resource)
    assert bool(of_others) is is_told
    assert of_others is None or ("which other jobs may share" in of_others.text and not of_others.advice)


@pytest.mark.parametrize(
    ("reason", "share", "expected"),
    [("hardware_thermal", 0.049, None), ("software_thermal", 0.05, W), ("hardware_thermal", 0.25, P),
     ("software_power_cap", 0.9, None), ("idle", 1.0, None)],
)  # fmt: skip
def test_gpu_clocks_that_heat_holds_down_are_told(reason: str, share: float, expected: Severity | None) -> None:
    told = gpus.gpu_clock(case(node(host={f'gpu_throttle_active{{gpu="0",reason="{reason}"}}': share})))
    assert (told and told.severity) == expected


@pytest.mark.parametrize(("seconds", "severity"), [(0.0, G), (9.0, N), (10.0, W), (99.0, W), (100.0, P)])
def test_gaps_are_graded_at_their_limits(seconds: float, severity: Severity) -> None:
    assert severity is only(completeness.gaps(case(node(job={}, hole_seconds=seconds)))).severity


@pytest.mark.parametrize(
    ("told", "severity", "words"),
    [
        (ENDED | {"exit_code": 0}, G, "ended with exit code 0 after 16 min 40 s"),
        (ENDED | {"exit_code": 3}, P, "exit code 3"),
        (ENDED | {"exit_code": 137}, P, "exit code 137, SIGKILL"),
        (ENDED | {"exit_code": -15}, P, "exit code -15, SIGTERM"),
        (ENDED | {"exit_code": 255}, P, "exit code 255"),
        (ENDED | {"reason": "time limit"}, N, "The measuring ended after 16 min 40 s; the job's exit code is unknown."),
        ({}, U, "was not recorded: it may still run, or the tool was killed"),
        (ENDED | {"exit_code": 0, "failed_before": 3}, W, "after 16 min 40 s. An earlier command of it failed: exit c"),
        ({"failed_before": 143}, U, "An earlier command of it failed: exit code 143, SIGTERM."),
    ],
)
def test_the_end_is_told_in_words(told: dict[str, Any], severity: Severity, words: str) -> None:
    finding = only(run.ending(case(node(job={}, document=told))))

    assert severity is finding.severity
    assert words in finding.text


@pytest.mark.parametrize(("confidence", "severity"), [("certain", N), ("high", N), ("low", W)])
def test_the_finder_is_named_with_its_confidence(confidence: str, severity: Severity) -> None:
    told = {"method": "environment", "confidence": confidence}
    finding = only(run.finder(case(node(job={}, document=told))))

    assert severity is finding.severity
    assert f"environment (confidence: {confidence})" in finding.text


def test_what_was_not_measured_is_unknown_with_the_reason_of_the_node() -> None:
    reasons = {
        "cpu-efficiency": ("job_cpu_user_seconds_total", "no permission: /proc/1/stat"),
        "gpu-use": ("gpu_utilization_ratio", "not found: libnvidia-ml.so.1"),
        "energy": ("job_energy_joules_total", "no permission: energy_uj is for root only"),
        "cpu-throttling": ("job_cpu_throttled_seconds_total", "unsupported: the job has no separate cgroup"),
    }
    lacking = node(job={"job_processes": 1.0}, capabilities=dict(reasons.values()))
    findings = {one.name: one for one in find(case(lacking))}

    for name, (_, reason) in reasons.items():
        assert (findings[name].severity, findings[name].text) == (U, f"Not measured: {reason}.")
        assert not any(value == 0 for value in findings[name].figures.values())


def test_ranks_share_memory_only_while_both_ran_as_told() -> None:
    times = {"a": ("12:00:00.000", "12:01:00.000"), "b": ("12:00:59.000", "12:02:00.000"), "c": ("12:02:00.001", None)}
    ranks = []
    for (name, (began, ended)), peak in zip(times.items(), (1, 2, 2.5), strict=True):
        told = {"started": f"2023-11-14T{began}+00:00", "ended": ended and f"2023-11-14T{ended}+00:00"}
        one = node(name, job={"job_memory_peak_bytes": peak * GIB}, document={"method": "command", **told})
        ranks.append(msgspec.structs.replace(one, host=msgspec.structs.replace(one.host, machine="boot a")))

    finding = only(memory(case(*ranks)))

    assert (finding.figures["peak_bytes"], finding.nodes) == (3 * GIB, ("b",))
    assert "Peaks of ranks that ran at once on one host are added up" in finding.text


@pytest.mark.parametrize(
    ("cpus", "advice"),
    [(8, "In some phases it used all"), (1e12, "In some phases it used all"), (1e300, "Ask for 666")],
)
def test_one_absurd_sample_asks_for_no_more_cpus_than_there_are(cpus: float, advice: str) -> None:
    busy = msgspec.structs.replace(gauge("job_cpus_busy", 1.0, high=1e15), levels=((1.0, 0.9), (1e15, 0.1)))
    finding = only(cpu_efficiency(case(node(job={**cpu(1.0), "job_cpus_busy": busy}, document={"cpus": cpus}))))

    assert finding.advice.startswith(advice)


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
    told = {"cpus": 4, "scheduler": scheduler, "nodes": list(nodes)}
    whole = case(*(node(name, job=cpu(0.8), document=told) for name in nodes))
    part = case(node(job=cpu(0.8), document=told))

    for one in (whole, part):
        advice = only(cpu_efficiency(one)).advice
        assert advice.endswith(line)
        assert ("For example" in advice) is bool(line)
