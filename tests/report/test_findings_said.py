"""What is said of jobs and machines, each promise in a line of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import pytest

from fedmon.common.store.recording import LostRange
from fedmon.report.findings import Case, Finding, Node, Severity
from fedmon.report.findings.completeness import absent_nodes, gaps, samples
from fedmon.report.findings.cpu import cpu_efficiency, imbalance
from fedmon.report.findings.energy import emissions, energy
from fedmon.report.findings.gpu import gpu_errors, gpus
from fedmon.report.findings.memory import memory, oom_kills
from fedmon.report.findings.run import ending, finder
from tests.report.cases import ENDED, GIB, Values, case, counter, cpu, gauge, gpu, node, only

P, W, N, G, U = Severity


class Said(NamedTuple):
    """A case, the words that its finding must have in text or advice, and what it must not have."""

    finder: Callable[[Case], Finding | None]
    of: Case
    words: tuple[str, ...] = ()
    severity: Severity | None = None
    nodes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = {}
    without: str = "\0"


FOUR: dict[str, Any] = {"cpus": 4}
PRESSURE = 'job_pressure_seconds_total{resource="cpu",kind="some"}'
WAITED: dict[str, Any] = {**cpu(1), PRESSURE: counter(PRESSURE, 700.0)}
ONE_SAMPLE = {name: counter(name, 0.0, first=50.0, grown_s=0.0) for name in cpu(1)}
ALIKE = case(*(node(name, job=cpu(2), document=FOUR) for name in "ab"), node("c", job={}))

OOM, HITS = "job_memory_oom_kills_total", "job_memory_limit_hits_total"
PEAK = {"job_memory_peak_bytes": 4 * GIB}
MACHINE = {"host_memory_total_bytes": 64 * GIB}
SLURM = {"memory_limit_bytes": 16 * GIB, "scheduler": "slurm"}


def full(busy: float, left: float, lowest: float) -> Values:
    """A machine of 10 GiB."""
    available = gauge("host_memory_available_bytes", left * GIB, low=lowest * GIB)
    return {"host_cpu_busy_ratio": busy, "host_memory_total_bytes": 10 * GIB, "host_memory_available_bytes": available}


INFO = 'gpu_info{gpu="1",uuid="GPU-abc",name="H100",driver="550"}'
TWO_GPUS: Values = gpu(0, 0.8, 0.0) | gpu(1, 0.0, 1.0)
HARMLESS = {
    'gpu_ecc_errors_total{gpu="1",counter="volatile",type="corrected"}': 7.0,
    'gpu_ecc_errors_total{gpu="2",counter="aggregate",type="uncorrected"}': 7.0,
}
ECC = {'gpu_ecc_errors_total{gpu="0",counter="volatile",type="uncorrected"}': 1.0}
IDLE = node("a", job=cpu(1.0), document=FOUR, capabilities={"gpu_utilization_ratio": "no GPU here"})
LOST = node("b", job={}, document={"gpus": ["0"]}, capabilities={
    "gpu_utilization_ratio": "no NVIDIA driver", "job_cpu_user_seconds_total": "no permission"})  # fmt: skip

JOULES = "job_energy_joules_total"
FACTOR = {"region": "FR", "name": "France", "gco2e_per_kwh": 56.0, "date": "2023", "source": "Ember", "pue": 1.2}


def drew(joules: float, method: str = "psys") -> Values:
    return {f'node_energy_joules_total{{method="{method}"}}': joules}


def used(joules: float, *, first: float = 0.0) -> Values:
    return {JOULES: counter(JOULES, joules, first=first)}


def rank(name: str, of_job: Values, cpus: float = 2.0) -> Node:
    one = node(name, job=of_job, host={"host_cpu_count": cpus})
    return msgspec.structs.replace(one, host=msgspec.structs.replace(one.host, machine="m"))


def lost(first: int, last: int, reason: str, stream: str = "job-1") -> dict[tuple[str, int], list[LostRange]]:
    return {(stream, 1): [LostRange(first_seq=first, last_seq=last, reason=reason)]}


BEFORE = lost(0, 99, "of the machine, before the job", "host")
READINGS = {"job_cpu_user_seconds_total": msgspec.structs.replace(
    counter("job_cpu_user_seconds_total", 50.0), values=992)}  # fmt: skip
CLUSTER = {"nodes": ["a.cluster", "b.cluster", "c.cluster"]}
WELL = ENDED | {"started": "2023-11-14T22:13:50+00:00", "exit_code": 0, "reason": "ended with exit code 0"}
FAILED = ENDED | {"exit_code": 3, "reason": "the disk was full"}

SAID: dict[str, Said] = {
    "system time and all nodes count, and idle CPUs are named": Said(
        cpu_efficiency, case(node("a", job=cpu(3), document=FOUR), node("b", job=cpu(1), document=FOUR)),
        ("used 1 h 6 min of CPU time", "50 % of the 8 CPUs that it was given", "4 of them were busy and 4 idle")),
    "a job that waited for CPUs is not told to take fewer": Said(
        cpu_efficiency, case(node(job=WAITED, document=FOUR)), ("fewer would make it slower",), without="Ask for"),
    "nodes with one CPU each have none to give back": Said(
        cpu_efficiency, case(*(node(name, job=cpu(0.2), host={"host_cpu_count": 1.0}) for name in "ab")),
        ("It mostly waited.", "20 % of the 2 CPUs of the machines."), N),
    "only nodes whose CPU time is known are called alike": Said(
        imbalance, ALIKE, ("The 2 nodes of the job were loaded alike",), nodes=("a", "b")),
    "nodes without CPU time have no part in the efficiency": Said(cpu_efficiency, ALIKE, nodes=("a", "b")),
    "one sample tells no efficiency": Said(
        cpu_efficiency, case(node(job=ONE_SAMPLE, document=FOUR)), ("one sample",), U),
    "one sample is enough if the start is known": Said(
        cpu_efficiency, case(node(job=ONE_SAMPLE, document=FOUR | {"started": "2023-11-14T22:12:20+00:00"})),
        figures={"ratio": 100 / (60 * 4)}),  # it is of 22:13:20
    "the limit of the cgroup counts before the request": Said(
        memory, case(node(job={**PEAK, "job_memory_limit_bytes": 8 * GIB}, host=MACHINE, document=SLURM)),
        figures={"limit_bytes": 8 * GIB}),
    "without a limit the memory of the machine counts": Said(
        memory, case(node(job=PEAK, host=MACHINE)), ("all memory of the machine",), N),
    "a limit that is not known is said": Said(
        memory, case(node(job=PEAK)), ("Its limit is unknown.",), figures={"limit_bytes": None}),
    "how often a cgroup ran into its limit is told": Said(
        memory, case(node(job={**PEAK, HITS: counter(HITS, 0.0, first=3.0)})),
        ("The cgroup ran into its limit 3 times.",)),
    "memory asked for comes with the line to copy": Said(
        memory, case(node(job={"job_memory_peak_bytes": 2 * GIB}, document=SLURM)),
        ("3.0 GiB would have been enough, with a reserve. For example: #SBATCH --mem=3G",)),
    "less than a GiB is told and copied in MiB": Said(
        memory, case(node(job={"job_memory_peak_bytes": GIB / 16}, document=SLURM)),
        ("128 MiB would have been enough, with a reserve. For example: #SBATCH --mem=128M",)),
    "the node that came closest to its limit is named": Said(
        memory, case(*(node(name, job={"job_memory_peak_bytes": amount * GIB}, document=SLURM)
                       for name, amount in (("a", 4), ("b", 15), ("c", 8)))),
        ("on b, the fullest of 3 nodes", "27.0 GiB at their peaks"), nodes=("b",)),
    "how the peak of the fullest node was measured is told": Said(
        memory, case(node("a", job={**PEAK, 'job_method_info{of="peak",method="tree"}': 1.0}),
                     node("b", job={**PEAK, 'job_method_info{of="peak",method="cgroup-v2"}': 1.0}, document=SLURM)),
        ("on b", "That is the peak of the job's cgroup, file cache included."), without="sum over its processes"),
    "a peak that is a sum over processes is called one": Said(
        memory, case(node(job={**PEAK, 'job_method_info{of="peak",method="tree"}': 1.0})),
        ("That is the largest sum over its processes in a sample: shared memory counts twice.",)),
    "processes that the kernel killed are a problem": Said(
        oom_kills, case(node(job={OOM: counter(OOM, 0.0, first=2.0)})),
        ("killed 2 processes of the job",), P),
    "processes that the kernel killed beside the job are told": Said(
        oom_kills, case(node(job={}, host={"host_oom_kills_total": 1.0})), (), W),
    "a GPU that others use is not held against the job": Said(
        gpus, case(node(job={'job_gpu_processes{gpu="0"}': 1.0}, host=TWO_GPUS, document={"gpus": ["0"]})), (), G,
        figures={"gpus": 1}),
    "GPUs of which none was used may not be the job's": Said(
        gpus, case(node(job={}, host=TWO_GPUS)), ("which of them were assigned to it is unknown",), N),
    "GPUs are known by their uuid too": Said(
        gpus, case(node(job={}, host={**TWO_GPUS, INFO: gauge(INFO, 1.0)}, document={"gpus": ["GPU-abc"]})), (), P,
        ("GPU 1 of n1",)),
    "errors in the memory of a GPU are a problem": Said(
        gpu_errors, case(node(host=ECC | HARMLESS)), (), P, ("GPU 0 of n1",)),
    "one machine is compared with nothing": Said(
        cpu_efficiency, case(node("a", host=full(0.5, 1, 0.5)), job=None),
        ("The CPUs of a were busy for 50 % of the time.",)),
    "the memory of one machine is told": Said(
        memory, case(node("a", host=full(0.5, 1, 0.5)), job=None),
        ("At most 9.5 GiB of 10.0 GiB (95 %) were in use on a.",), W),
    "full machines are named": Said(
        memory, case(*(node(name, host=full(0.5, 1, 0.5)) for name in "ab"), job=None),
        ("2 nodes were fuller than 90 %: a and b.",)),
    "ranks that need less than a CPU together need no whole one each": Said(
        cpu_efficiency, case(*(rank(name, {**cpu(0.05), "job_cpus_busy": gauge("job_cpus_busy", 0.05, high=0.2)})
                               for name in "abc")),
        ("At most 0.6 were busy at once.", "Ask for 1 CPU"), N),
    "what ranks need together is not the peak of some of them": Said(
        cpu_efficiency, case(rank("a", {**cpu(0.05), "job_cpus_busy": gauge("job_cpus_busy", 0.05, high=0.2)}, 8.0),
                             rank("b", cpu(2.2), 8.0)),
        ("Ask for 4 CPUs",), N),
    "an empty recording of nodes is not blamed on the interval of a job": Said(
        samples, case(job=None), ("No sample of these nodes was recorded", "Check that nodes were online"), P),
    "machines that are busy alike are not compared": Said(
        cpu_efficiency, case(*(node(name, host=full(0.5, 3, 1)) for name in "ab"), job=None),
        ("The CPUs of 2 nodes were busy for 50 % of the time.",)),
    "machines are compared": Said(
        cpu_efficiency, case(node("a", host=full(0.95, 3, 1)), node("b", host=full(0.05, 9, 9)), job=None),
        ("most on a (95 %), least on b (5.0 %)",), nodes=("a",)),
    "GPUs are unknown for the reason of a node that should have one": Said(
        gpus, case(IDLE, LOST), ("Not measured: no NVIDIA driver.",), U),
    "balance is unknown for the reason of the node that lacks it": Said(
        imbalance, case(IDLE, LOST), ("Not measured: no CPU time of the job on b: no permission.",), U),
    "energy says its method and where it is missing": Said(
        energy, case(node("a", job=used(1.7e6, first=1e5), host=drew(3.6e6, "gpus")), node("b", job={})),
        ("The job used 500 Wh", "Source: counters of GPUs alone, shared by CPU time and GPU use.", "Not measured on b"),
        figures={"joules": 1.8e6}),
    "the energy of a machine is told when the job's share is not known": Said(
        energy, case(node("a", job={}, host=drew(36_000.0))),
        (" on average. Source: the platform's counter. The job's share of it is not known.",),
        without="Not measured on"),
    "the energy of machines says where it is missing": Said(
        energy, case(node("a", job={}, host=drew(36_000.0)), node("b", job={})),
        (" The job's share of it is not known. Not measured on b.",)),
    "CO2 names its factor and the source of it": Said(
        emissions, case(node(job={"job_emissions_grams_total": 5.0}, hardware={"emission_factor": FACTOR})),
        ("5 g of CO2", "energy x 56 g/kWh x PUE 1.2 (FR, France, 2023, Ember)")),
    "lost samples are told with their reason": Said(
        gaps, case(node(job={}, hole_seconds=20.0, missing=20, lost=lost(5, 14, "the node dropped them") | BEFORE)),
        ("Known to be lost: 10 the node dropped them.",), figures={"lost_samples": 10, "missing_samples": 20}),
    "the longest gap of all nodes is told": Said(
        gaps, case(node("a", job={}, hole_seconds=30.0), node("b", job={}, hole_seconds=20.0)),
        ("The longest gap is 30.0 s on a",)),
    "nodes may begin late": Said(
        gaps, case(*(node(name, job={}) for name in "ab")),
        ("No sample is missing between the first and the last of each: 2000 samples of 2 nodes.",), G),
    "a number that is missing alone is no gap": Said(
        gaps, case(node("a", job={}, missing=1)), (), N, without="longest gap"),
    "losses before or after all samples are no gap": Said(
        gaps, case(node("a", job={}, lost=lost(0, 4, "the node no longer keeps them"))),
        ("Samples are gone for good: 5 the node no longer keeps them.",), N),
    "readings that are missing in samples are told": Said(
        gaps, case(node(job=READINGS)), ("8 of job_cpu_user_seconds_total",), N, figures={"missing_readings": 8}),
    "samples of machines are too few together": Said(
        samples, case(*(node(name, host=full(0.5, 1, 0.5), samples=4) for name in "ab"), job=None),
        ("There are only 8 samples of these nodes.",), N),
    "nodes that recorded nothing are named": Said(
        absent_nodes, case(node("a", job={}, document=CLUSTER), node("b", document=CLUSTER)),
        ("Of 3 nodes of the job, 2 recorded nothing",), P, ("c.cluster", "b")),
    "an only node that recorded nothing is one of one": Said(
        absent_nodes, case(node("b", document={"cpus": 1})), ("Of 1 node of the job, 1 recorded nothing",), P, ("b",)),
    "the end is that of a node on which the job failed, and its begin the first": Said(
        ending, case(node("a", job={}, document=WELL), node("b", job={}, document=FAILED)),
        ("The job failed: exit code 3 after 16 min 40 s. Noted reason: the disk was full.",)),
    "a job that was requeued to another node is told as it ended there": Said(
        ending, case(node("a", job={}, document=FAILED | {"starts_at": 1}),
                     node("b", job={}, document=WELL | {"starts_at": 2})),
        ("The job ended with exit code 0",), G),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_said(name: str) -> None:
    said = SAID[name]
    finding = only(said.finder(said.of))
    words = f"{finding.text} {finding.advice}"

    assert [each for each in said.words if each not in words] == [], words
    assert said.without not in words
    assert said.severity in (None, finding.severity)
    assert said.nodes in ((), finding.nodes)
    assert {key: finding.figures[key] for key in said.figures} == {
        key: value if value is None else pytest.approx(value) for key, value in said.figures.items()
    }


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (oom_kills, node(job={OOM: 0.0})),
        (gpu_errors, node(host=HARMLESS)),
        (gpus, node(job={}, hardware={"gpus": []})),
        (finder, node(job={}, document={"method": "command", "exit_code": 0})),
    ],
    ids=["no kill", "errors that were corrected", "no GPU", "a command, for which nothing was searched"],
)
def test_what_is_not_worth_a_finding_is_not_said(of: Callable[[Case], Finding | None], told: Node) -> None:
    assert of(case(told)) is None
