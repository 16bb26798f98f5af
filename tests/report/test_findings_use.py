"""What is said of CPUs, memory and GPUs, at the borders of each limit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fedmon.report.findings import Severity, find
from fedmon.report.findings.cpu import cpu_efficiency, imbalance
from fedmon.report.findings.gpu import gpu_errors, gpus
from fedmon.report.findings.memory import memory, oom_kills
from tests.report.cases import GIB, case, counter, cpu, gauge, node, only

FOUR = {"cpus": 4}


def test_cpu_efficiency_counts_system_time_all_nodes_and_names_the_idle_cpus() -> None:
    finding = only(cpu_efficiency(case(node("a", job=cpu(3), document=FOUR), node("b", job=cpu(1), document=FOUR))))

    assert "66 min 40 s" in finding.text or "1 h 6 min" in finding.text
    assert "50 % of the 8 CPUs that it was given" in finding.text
    assert "4 of them were busy and 4 idle" in finding.text


def test_a_job_that_waited_for_cpus_is_not_told_to_take_fewer() -> None:
    pressure = 'job_pressure_seconds_total{resource="cpu",kind="some"}'
    waited = {pressure: counter(pressure, 700.0)}

    advice = only(cpu_efficiency(case(node(job={**cpu(1), **waited}, document=FOUR)))).advice

    quota = {"job_cpu_throttled_seconds_total": 500.0}
    held = only(cpu_efficiency(case(node(job={**cpu(1), **waited, **quota}, document=FOUR)))).advice

    assert "Ask for" not in advice
    assert "others used them" in advice
    assert held.startswith("The quota of its cgroup kept it from CPUs")


def test_cpus_of_a_machine_that_nodes_share_are_counted_once() -> None:
    nodes = (node("a", job=cpu(2), host={"host_cpu_count": 8.0}), node("b", job=cpu(2), hardware={"threads": 8}))
    first, other = (
        msgspec.structs.replace(one, host=msgspec.structs.replace(one.host, machine="boot a")) for one in nodes
    )

    shared = only(cpu_efficiency(case(first, other)))
    given = only(cpu_efficiency(case(*(msgspec.structs.replace(one, document=FOUR) for one in (first, other)))))

    assert "50 % of the 8 CPUs of the machine" in shared.text
    assert "is unknown" in shared.how
    assert "50 % of the 8 CPUs that it was given" in given.text


def test_only_nodes_whose_cpu_time_is_known_are_called_alike() -> None:
    finding = only(imbalance(case(*(node(name, job=cpu(2), document=FOUR) for name in "ab"), node("c", job={}))))

    assert finding.text.startswith("The 2 nodes of the job were loaded alike")
    assert finding.nodes == ("a", "b")


def test_one_sample_tells_no_efficiency_unless_the_start_is_known() -> None:
    first = {name: counter(name, 0.0, first=50.0, grown_s=0.0) for name in cpu(1)}

    unknown = only(cpu_efficiency(case(node(job=first, document=FOUR))))
    known = only(cpu_efficiency(case(node(job=first, document=FOUR | {"started": "2023-11-14T22:12:20+00:00"}))))

    assert unknown.severity is Severity.UNKNOWN
    assert "one sample" in unknown.text
    assert pytest.approx(100 / (60 * 4)) == known.figures["ratio"]  # T is 22:13:20


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


def test_the_cgroup_limit_counts_before_the_request_and_the_machine_last() -> None:
    machine = {"host_memory_total_bytes": 64 * GIB}
    job = {"job_memory_peak_bytes": 4 * GIB}
    told = {"memory_limit_bytes": 16 * GIB}

    of_cgroup = only(memory(case(node(job={**job, "job_memory_limit_bytes": 8 * GIB}, host=machine, document=told))))
    of_machine = only(memory(case(node(job=job, host=machine))))
    of_nobody = only(memory(case(node(job=job))))

    assert of_cgroup.figures["limit_bytes"] == 8 * GIB
    assert "all memory of the machine" in of_machine.text
    assert of_machine.severity is Severity.NOTE
    assert of_nobody.figures["limit_bytes"] is None
    assert "Its limit is unknown." in of_nobody.text


def test_how_often_a_cgroup_ran_into_its_limit_is_told() -> None:
    hits = counter("job_memory_limit_hits_total", 0.0, first=3.0)
    job: dict[str, Any] = {"job_memory_peak_bytes": 4 * GIB, "job_memory_limit_hits_total": hits}

    assert "The cgroup ran into its limit 3 times." in only(memory(case(node(job=job)))).text


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


def test_processes_that_the_kernel_killed_are_a_problem() -> None:
    killed = {"job_memory_oom_kills_total": counter("job_memory_oom_kills_total", 0.0, first=2.0)}
    finding = only(oom_kills(case(node(job=killed))))

    assert finding.severity is Severity.PROBLEM
    assert "killed 2 processes of the job" in finding.text
    assert oom_kills(case(node(job={"job_memory_oom_kills_total": 0.0}))) is None
    assert only(oom_kills(case(node(job={}, host={"host_oom_kills_total": 1.0})))).severity is Severity.WARNING


def gpu(use: float, idle: float, number: int = 0) -> dict[str, Any]:
    name = f'gpu_utilization_ratio{{gpu="{number}"}}'
    return {name: gauge(name, use, low_share=idle)}


def test_a_gpu_that_others_use_is_not_held_against_the_job() -> None:
    host = {**gpu(0.8, 0.0, 0), **gpu(0.0, 1.0, 1)}
    used = {'job_gpu_processes{gpu="0"}': 1.0}

    finding = only(gpus(case(node(job=used, host=host, document={"gpus": ["0"]}))))
    unknown = only(gpus(case(node(job={}, host=host))))

    assert finding.figures["gpus"] == 1
    assert finding.severity is Severity.GOOD
    assert unknown.severity is Severity.NOTE
    assert "which of them were assigned to it is unknown" in unknown.text


def test_gpus_are_known_by_their_uuid_too() -> None:
    info = 'gpu_info{gpu="1",uuid="GPU-abc",name="H100",driver="550"}'
    host = {**gpu(0.8, 0.0, 0), **gpu(0.0, 1.0, 1), info: gauge(info, 1.0)}
    finding = only(gpus(case(node(job={}, host=host, document={"gpus": ["GPU-abc"]}))))

    assert finding.nodes == ("GPU 1 of n1",)
    assert finding.severity is Severity.PROBLEM


def test_errors_in_the_memory_of_a_gpu_are_a_problem() -> None:
    errors = {'gpu_ecc_errors_total{gpu="0",counter="volatile",type="uncorrected"}': 1.0}
    harmless = {
        'gpu_ecc_errors_total{gpu="1",counter="volatile",type="corrected"}': 7.0,
        'gpu_ecc_errors_total{gpu="2",counter="aggregate",type="uncorrected"}': 7.0,
    }
    finding = only(gpu_errors(case(node(host=errors | harmless))))

    assert (finding.severity, finding.nodes) == (Severity.PROBLEM, ("GPU 0 of n1",))
    assert gpu_errors(case(node(host=harmless))) is None


def test_one_machine_without_a_job_is_compared_with_nothing_and_full_ones_are_named() -> None:
    full: dict[str, Any] = {"host_cpu_busy_ratio": 0.5, "host_memory_total_bytes": 10 * GIB,
            "host_memory_available_bytes": gauge("host_memory_available_bytes", GIB, low=0.5 * GIB)}  # fmt: skip
    of_one = {one.name: one for one in find(case(node("a", host=full), job=None))}
    of_two = {one.name: one for one in find(case(node("a", host=full), node("b", host=full), job=None))}

    assert of_one["cpu-use"].text == "The CPUs of a were busy for 50 % of the time."
    assert of_one["memory-use"].text == "At the most 9.5 GiB of 10.0 GiB (95 %) were in use on a."
    assert "2 nodes were fuller than 90 %: a and b." in of_two["memory-use"].text


def test_nodes_without_a_job_are_compared() -> None:
    full: dict[str, Any] = {"host_cpu_busy_ratio": 0.95, "host_memory_total_bytes": 10 * GIB,
            "host_memory_available_bytes": gauge("host_memory_available_bytes", 3 * GIB, low=GIB)}  # fmt: skip
    idle = {"host_cpu_busy_ratio": 0.05, "host_memory_total_bytes": 10 * GIB, "host_memory_available_bytes": 9 * GIB}
    findings = {one.name: one for one in find(case(node("a", host=full), node("b", host=idle), job=None))}

    assert "most on a (95 %), least on b (5.0 %)" in findings["cpu-use"].text
    assert findings["cpu-use"].nodes == ("a",)
    assert findings["memory-use"].severity is Severity.WARNING


def test_one_absurd_sample_asks_for_no_more_cpus_than_there_are() -> None:
    busy = msgspec.structs.replace(gauge("job_cpus_busy", 1.0, high=1e12), levels=((1.0, 0.9), (1e12, 0.1)))
    finding = only(cpu_efficiency(case(node(job={**cpu(1.0), "job_cpus_busy": busy}, document={"cpus": 8}))))

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


def test_memory_asked_for_comes_with_the_line_to_copy() -> None:
    told = {"memory_limit_bytes": 16 * GIB, "scheduler": "slurm"}
    finding = only(memory(case(node(job={"job_memory_peak_bytes": 2 * GIB}, document=told))))

    assert finding.advice == "3.0 GiB would have been enough, with a reserve. For example: #SBATCH --mem=3G"


def test_the_node_that_came_closest_to_its_limit_is_named() -> None:
    nodes = [node(name, job={"job_memory_peak_bytes": amount * GIB}, document={"memory_limit_bytes": 16 * GIB})
             for name, amount in (("a", 4), ("b", 15), ("c", 8))]  # fmt: skip
    finding = only(memory(case(*nodes)))

    assert finding.nodes == ("b",)
    assert "on b, the fullest of 3 nodes" in finding.text
    assert "27.0 GiB at their peaks" in finding.text


def test_a_machine_without_gpus_says_nothing_of_them() -> None:
    assert gpus(case(node(job={}, hardware={"gpus": []}))) is None
