"""What is said of waiting, throttling, balance, energy, gaps, clocks and the end, at the borders of each limit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fedmon.common.store.recording import LostRange
from fedmon.report.findings import Severity, completeness, energy, find, run, stalls, traffic
from fedmon.report.findings import cpu as cpus
from fedmon.report.findings import gpu as gpus
from fedmon.report.totals import ClockStep
from tests.report.cases import T, case, counter, cpu, node, only

W, G, N, P, U = Severity.WARNING, Severity.GOOD, Severity.NOTE, Severity.PROBLEM, Severity.UNKNOWN


@pytest.mark.parametrize(
    ("resource", "kind", "share", "is_told"),
    [("io", "full", 0.1, True), ("io", "full", 0.099, False), ("io", "some", 0.9, False), ("memory", "full", 0.1, True),
     ("cpu", "some", 0.5, True), ("cpu", "some", 0.49, False)],
)  # fmt: skip
def test_pressure_is_told_from_its_limit_on(resource: str, kind: str, share: float, is_told: bool) -> None:
    of_host = {f'host_pressure_seconds_total{{resource="{resource}",stalled="{kind}"}}': share * 1000}
    of_job = {f'job_pressure_seconds_total{{resource="{resource}",kind="{kind}"}}': share * 1000}

    assert bool(stalls.pressure(case(node(job={}, host=of_host)), resource)) is is_told
    told = stalls.pressure(case(node(job=of_job)), resource)
    assert bool(told) is is_told
    assert told is None or "of the job's cgroup" in told.how


@pytest.mark.parametrize(
    ("reason", "share", "expected"),
    [("hardware_thermal", 0.049, None), ("software_thermal", 0.05, W), ("hardware_thermal", 0.25, P),
     ("software_power_cap", 0.9, None), ("idle", 1.0, None)],
)  # fmt: skip
def test_gpu_clocks_that_heat_holds_down_are_told(reason: str, share: float, expected: Severity | None) -> None:
    told = gpus.gpu_clock(case(node(host={f'gpu_throttle_active{{gpu="0",reason="{reason}"}}': share})))
    assert (told and told.severity) == expected


def test_a_value_is_unknown_for_the_reason_of_a_node_that_lacks_it() -> None:
    idle = node("a", job=cpu(1.0), document={"cpus": 4}, capabilities={"gpu_utilization_ratio": "no GPU here"})
    lost = node("b", job={}, document={"gpus": ["0"]}, capabilities={
        "gpu_utilization_ratio": "no NVIDIA driver", "job_cpu_user_seconds_total": "no permission"})  # fmt: skip

    assert only(gpus.gpus(case(idle, lost))).text == "Not measured: no NVIDIA driver."
    assert only(cpus.imbalance(case(idle, lost))).text == "Not measured: no CPU time of the job on b: no permission."


def test_loopback_is_no_network_traffic() -> None:
    host = {f'host_network_{way}_bytes_total{{interface="{name}"}}': amount
            for way in ("receive", "transmit") for name, amount in (("lo", 9e9), ("eth0", 2.0**20))}  # fmt: skip
    assert "received 1.0 MiB by network and sent 1.0 MiB" in only(traffic.volumes(case(node(host=host)))).text


def test_nodes_that_share_a_machine_are_one_machine() -> None:
    disk = {f'host_disk_{way}_bytes_total{{device="sda"}}': 1e9 for way in ("read", "written")}
    other = msgspec.structs.replace(node("b"), counted_by="a")

    assert only(traffic.volumes(case(node("a", host=disk), other, job=None))).text.startswith("The machine read")


def test_rates_are_of_the_time_in_which_counters_were_read() -> None:
    read, written = (f"job_storage_{way}_bytes_total" for way in ("read", "written"))
    names = [f'host_network_{way}_bytes_total{{interface="eth0"}}' for way in ("receive", "transmit")]
    found = only(
        traffic.volumes(
            case(
                node(
                    job={read: counter(read, 2.0**20 * 10, grown_s=5.0), written: counter(written, 0.0, grown_s=5.0)},
                    host={name: counter(name, 2.0**20 * 100, grown_s=100.0) for name in names},
                )
            )
        )
    )

    assert "wrote 0 B (2.0 MiB/s together)" in found.text
    assert "sent 100 MiB (2.0 MiB/s together)" in found.text


@pytest.mark.parametrize(("left", "is_told"), [(5.0, True), (5.1, False)])
def test_file_systems_are_full_from_their_limit_on(left: float, is_told: bool) -> None:
    host = {'host_filesystem_size_bytes{mountpoint="/scratch"}': 100.0,
            'host_filesystem_available_bytes{mountpoint="/scratch"}': left}  # fmt: skip
    assert bool(traffic.full_file_systems(case(node(host=host)))) is is_told


JOULES = "job_energy_joules_total"


def test_energy_says_the_share_its_method_and_where_it_is_missing() -> None:
    drew = {'node_energy_joules_total{method="gpus"}': 3.6e6}
    first = node("a", job={JOULES: counter(JOULES, 1.7e6, first=1e5)}, host=drew)
    finding = only(energy.energy(case(first, node("b", job={}))))

    assert "The job used 500 Wh" in finding.text
    assert "50 % of the energy of its machines (1 kWh)" in finding.text
    assert "Not measured on b" in finding.text
    assert "GPUs only" in finding.how
    assert finding.figures["joules"] == 1.8e6


def test_a_job_is_compared_with_the_machines_of_which_its_share_is_known() -> None:
    drew = {'node_energy_joules_total{method="psys"}': 1000.0}
    nodes = [node("a", job={JOULES: counter(JOULES, 500.0)}, host=drew), node("b", job={}, host=drew)]
    finding = only(energy.energy(case(*nodes)))

    assert "50 % of the energy of its machines (1000 J" in finding.text
    assert "Not measured on b" in finding.text


def test_a_job_on_nodes_of_one_machine_is_compared_with_it_as_a_whole() -> None:
    drew = {'node_energy_joules_total{method="psys"}': 1000.0}
    first = node("a", job={JOULES: counter(JOULES, 500.0)}, host=drew)
    other = msgspec.structs.replace(node("b", job={JOULES: counter(JOULES, 250.0)}), counted_by="a")

    assert "75 % of the energy of its machines (1000 J" in only(energy.energy(case(first, other))).text


def test_co2_names_its_factor_and_the_source_of_it() -> None:
    factor = {"region": "FR", "name": "France", "gco2e_per_kwh": 56.0, "date": "2023", "source": "Ember", "pue": 1.2}
    one = node(job={"job_emissions_grams_total": 5.0}, hardware={"emission_factor": factor})
    finding = only(energy.emissions(case(one)))

    assert "5 g of CO2" in finding.text
    assert finding.how == "energy x 56 g/kWh x PUE 1.2 (FR, France, 2023, Ember)"


@pytest.mark.parametrize(("seconds", "severity"), [(0.0, G), (9.0, G), (10.0, W), (99.0, W), (100.0, P)])
def test_gaps_are_graded_at_their_limits(seconds: float, severity: Severity) -> None:
    assert severity is only(completeness.gaps(case(node(job={}, hole_seconds=seconds)))).severity


def test_lost_samples_are_told_with_their_reason() -> None:
    lost = {("job-1", 1): [LostRange(first_seq=5, last_seq=14, reason="the node dropped them")],
            ("host", 1): [LostRange(first_seq=0, last_seq=99, reason="of the machine, before the job")]}  # fmt: skip
    finding = only(completeness.gaps(case(node(job={}, hole_seconds=20.0, missing=20, lost=lost))))

    assert finding.text.endswith("Known to be lost: 10 the node dropped them.")
    assert finding.figures["lost_samples"] == 10
    assert finding.figures["missing_samples"] == 20


def test_the_longest_gap_of_all_nodes_is_told_and_losses_before_all_samples_are_no_gap() -> None:
    before = {("job-1", 1): [LostRange(first_seq=0, last_seq=4, reason="the node no longer keeps them")]}
    of_two = only(completeness.gaps(case(node("a", job={}, hole_seconds=30.0), node("b", job={}, hole_seconds=20.0))))
    single = only(completeness.gaps(case(node("a", job={}, missing=1))))
    gone = only(completeness.gaps(case(node("a", job={}, lost=before))))

    assert "The longest gap is 30.0 s on a" in of_two.text
    assert (single.severity, "longest gap" in single.text) == (N, False)
    assert gone.severity is N
    assert gone.text == "Older samples are gone for good: 5 the node no longer keeps them."


def test_readings_that_are_missing_in_samples_are_told() -> None:
    cpu_time = msgspec.structs.replace(counter("job_cpu_user_seconds_total", 50.0), values=992)
    finding = only(completeness.gaps(case(node(job={"job_cpu_user_seconds_total": cpu_time}))))

    assert finding.severity is N
    assert "8 of job_cpu_user_seconds_total" in finding.text
    assert finding.figures["missing_readings"] == 8


def test_a_run_that_ended_well_before_its_first_sample_opens_with_no_problem() -> None:
    told = {"job_id": "1", "exit_code": 0, "ended": "2025-11-21T04:50:00+00:00", "method": "command"}
    findings = find(case(node(document=told)))

    assert [one.severity for one in findings if one.name == "samples"] == [N]
    assert run.finder(case(node(job={}, document=told))) is None, "nothing was searched"


def test_nodes_that_recorded_nothing_are_named() -> None:
    told = {"nodes": ["a.cluster", "b.cluster", "c.cluster"]}
    finding = only(completeness.absent_nodes(case(node("a", job={}, document=told), node("b", document=told))))

    assert finding.severity is P
    assert finding.nodes == ("c.cluster", "b")
    assert "2 of the 3 nodes" in finding.text


@pytest.mark.parametrize(("offset", "is_told"), [(0.5, True), (0.49, False), (2.0, True), (-2.0, True)])
def test_clocks_apart_are_told_from_half_a_second_on(offset: float, is_told: bool) -> None:
    nodes = [node(name, job={}, tool={"clock_offset_s": by}) for name, by in (("a", 0.0), ("b", offset))]
    told = completeness.clocks_apart(case(*nodes))

    assert bool(told) is is_told
    assert told is None or f"{abs(offset):g} s apart" in told.text


@pytest.mark.parametrize(("by_s", "is_told"), [(1.0, True), (-1.0, True), (0.9, False)])
def test_a_clock_that_was_set_is_told(by_s: float, is_told: bool) -> None:
    assert bool(completeness.clock_set(case(node(job={}, steps=(ClockStep(T, by_s),))))) is is_told


ENDED = {"started": "2023-11-14T22:13:20+00:00", "ended": "2023-11-14T22:30:00+00:00"}


@pytest.mark.parametrize(
    ("told", "severity", "words"),
    [
        (ENDED | {"exit_code": 0}, G, "ended with exit code 0 after 16 min 40 s"),
        (ENDED | {"exit_code": 3}, P, "exit code 3"),
        (ENDED | {"exit_code": 137}, P, "exit code 137, SIGKILL"),
        (ENDED | {"exit_code": -15}, P, "exit code -15, SIGTERM"),
        (ENDED | {"exit_code": 255}, P, "exit code 255"),
        (ENDED | {"reason": "time limit"}, N, "its exit code is unknown. Noted reason: time limit."),
        ({}, U, "was not recorded: it may still run, or the tool was killed"),
    ],
)
def test_the_end_is_told_in_words(told: dict[str, Any], severity: Severity, words: str) -> None:
    finding = only(run.ending(case(node(job={}, document=told))))

    assert severity is finding.severity
    assert words in finding.text


def test_the_end_is_that_of_a_node_on_which_the_job_failed_and_its_begin_the_first() -> None:
    well = ENDED | {"started": "2023-11-14T22:13:50+00:00", "exit_code": 0, "reason": "ended with exit code 0"}
    failed = ENDED | {"exit_code": 3, "reason": "the disk was full"}
    finding = only(run.ending(case(node("a", job={}, document=well), node("b", job={}, document=failed))))

    assert finding.text == "The job failed: exit code 3 after 16 min 40 s. Noted reason: the disk was full."


@pytest.mark.parametrize(("confidence", "severity"), [("certain", N), ("high", N), ("low", W), ("guess", W)])
def test_the_finder_is_named_with_its_confidence(confidence: str, severity: Severity) -> None:
    told = {"method": "environment", "confidence": confidence}
    finding = only(run.finder(case(node(job={}, document=told))))

    assert severity is finding.severity
    assert f"environment (confidence: {confidence})" in finding.text


def test_energy_of_machines_is_told_when_the_share_of_the_job_is_not_known() -> None:
    host = {'node_energy_joules_total{method="psys"}': 36_000.0}
    one, two = (only(energy.energy(case(node("a", job={}, host=host), *more))) for more in ([], [node("b", job={})]))

    assert one.text.endswith(" on average. The job's share of it is not known.")
    assert two.text.endswith(" The job's share of it is not known. Not measured on b.")


def test_a_network_that_moved_nothing_is_not_worth_a_sentence() -> None:
    zeros = {f'host_network_{way}_bytes_total{{interface="eth0"}}': 0.0 for way in ("receive", "transmit")}
    disk = {f'host_disk_{way}_bytes_total{{device="sda"}}': 1e9 for way in ("read", "written")}

    assert "network" not in only(traffic.volumes(case(node(host=zeros | disk)))).text
