"""What the GPU collectors read, from a stand-in for NVML, without their threads."""

from __future__ import annotations

from typing import Any

import msgspec
import pynvml
import pytest

from fedmon.common.metrics.series import metric_name, split_series
from fedmon.common.metrics.table import METRICS
from fedmon.node.collectors.nvml import NvmlSession, queries
from fedmon.node.collectors.nvml.library import Nvml
from fedmon.node.collectors.nvml.queries import Query
from fedmon.node.collectors.nvml.reader import LaneReader, Round
from tests.support.nvml import FakeGpu, FakeMig, FakeNvml

EVERYTHING = (*queries.FAST, *queries.MEDIUM, *queries.PCIE, *queries.SLOW)
LINKS = tuple(query for query in queries.MEDIUM if "nvlink" in query.gives[0][0])
NOT_LINKS = tuple(query for query in queries.MEDIUM if query not in LINKS)
NOT_SUPPORTED, TIMEOUT = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_TIMEOUT


def reader(fake: FakeNvml, asked: tuple[Query, ...] = EVERYTHING) -> LaneReader:
    return LaneReader(NvmlSession(Nvml(fake), retry_s=0.0, monotonic=lambda: 0.0), asked, with_processes=True)


def of_gpu(found: Round, gpu: str) -> dict[str, float | None]:
    return {key: value for key, value in found.values.items() if f'gpu="{gpu}"' in key}


def test_every_value_is_in_base_units() -> None:
    found = reader(FakeNvml(FakeGpu())).read()

    assert found.reasons == {}
    expected = {
        'gpu_info{gpu="0",uuid="GPU-0",name="NVIDIA Test 80GB",driver="580.1"}': 1,
        'gpu_utilization_ratio{gpu="0"}': 0.37,
        'gpu_memory_utilization_ratio{gpu="0"}': 0.12,
        'gpu_encoder_utilization_ratio{gpu="0"}': 0.05,
        'gpu_decoder_utilization_ratio{gpu="0"}': 0.06,
        'gpu_memory_total_bytes{gpu="0"}': 80 << 30,
        'gpu_memory_used_bytes{gpu="0"}': 3 << 30,
        'gpu_memory_reserved_bytes{gpu="0"}': 1 << 30,
        'gpu_bar1_total_bytes{gpu="0"}': 1 << 37,
        'gpu_clock_hertz{gpu="0",clock="graphics"}': 1_000_000_000,
        'gpu_clock_hertz{gpu="0",clock="video"}': 1_003_000_000,
        'gpu_clock_max_hertz{gpu="0",clock="memory"}': 2_002_000_000,
        'gpu_temperature_celsius{gpu="0"}': 41,
        'gpu_memory_temperature_celsius{gpu="0"}': 55,
        'gpu_fan_speed_ratio{gpu="0"}': 0.3,
        'gpu_power_watts{gpu="0"}': 123.456,
        'gpu_energy_joules_total{gpu="0"}': 7000.5,
        'gpu_power_limit_watts{gpu="0",limit="enforced"}': 690,
        'gpu_power_limit_watts{gpu="0",limit="lowest"}': 200,
        'gpu_performance_state{gpu="0"}': 0,
        'gpu_throttle_active{gpu="0",reason="software_power_cap"}': 1,
        'gpu_throttle_active{gpu="0",reason="software_thermal"}': 1,
        'gpu_throttle_active{gpu="0",reason="hardware_thermal"}': 0,
        'gpu_violation_seconds_total{gpu="0",policy="power"}': 0,
        'gpu_violation_seconds_total{gpu="0",policy="thermal"}': 1.5,
        'gpu_violation_seconds_total{gpu="0",policy="application_clocks"}': 15,
        'gpu_ecc_errors_total{gpu="0",counter="volatile",type="corrected"}': 0,
        'gpu_ecc_errors_total{gpu="0",counter="aggregate",type="uncorrected"}': 11,
        'gpu_ecc_enabled{gpu="0"}': 1,
        'gpu_retired_pages{gpu="0",cause="double_bit"}': 2,
        'gpu_remapped_rows{gpu="0",cause="uncorrected"}': 2,
        'gpu_pcie_receive_bytes_per_second{gpu="0"}': 501_000,
        'gpu_pcie_link_generation{gpu="0"}': 5,
        'gpu_pcie_replays_total{gpu="0"}': 3,
        'gpu_nvlink_active{gpu="0",link="1"}': 1,
        'gpu_nvlink_transmit_bytes_total{gpu="0",link="1"}': 1001 * 1024,
        'gpu_nvlink_errors_total{gpu="0",error="recovery"}': 202,
        'gpu_nvlink_link_errors_total{gpu="0",link="1",error="recovery"}': 101,
        'gpu_processes{gpu="0",type="compute"}': 2,
        'gpu_processes{gpu="0",type="graphics"}': 1,
    }
    assert {key: found.values.get(key) for key in expected} == expected
    assert not [key for key in found.values if 'link="2"' in key]


def test_every_series_belongs_to_the_table_with_its_labels() -> None:
    found = reader(FakeNvml(FakeGpu(instances={0: FakeMig("MIG-a")}))).read()

    declared = {name: set(metric.labels) for name, metric in METRICS.items()}
    assert [key for key in found.values if set(split_series(key)[1]) != declared[metric_name(key)]] == []
    assert {metric_name(key) for key in found.values} == {name for name in METRICS if name.startswith("gpu_")}


def test_all_policies_and_reasons_that_the_library_knows_are_asked_for() -> None:
    policies = {name for name in dir(pynvml) if name.startswith("NVML_PERF_POLICY_")} - {"NVML_PERF_POLICY_COUNT"}
    reasons = {
        getattr(pynvml, name)
        for name in dir(pynvml)
        if name.startswith(("nvmlClocksEventReason", "nvmlClocksThrottleReason")) and not name.endswith(("All", "None"))
    }

    assert set(queries.POLICIES.values()) == policies
    assert set(queries.THROTTLE_REASONS.values()) == reasons
    assert queries.MAX_LINKS == pynvml.NVML_NVLINK_MAX_LINKS
    for constants in (queries.CLOCKS, queries.ECC_COUNTERS, queries.ECC_TYPES, queries.LINK_ERRORS):
        assert all(isinstance(getattr(pynvml, constant), int) for constant in constants.values())


# All links are asked alike, so two of them and the errors stand for all.
SOME_LINKS = (*LINKS[:6], *LINKS[-len(queries.LINK_ERRORS) :])


@pytest.mark.parametrize(
    "refused", [*queries.FAST, *NOT_LINKS, *SOME_LINKS, *queries.PCIE, *queries.SLOW], ids=lambda query: query.name
)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, TIMEOUT], ids=["not supported", "timeout"])
def test_a_single_refused_query_costs_only_what_it_gives(refused: Query, code: int) -> None:
    asked = (*queries.FAST, *NOT_LINKS, *SOME_LINKS, *queries.PCIE, *queries.SLOW)
    every = reader(FakeNvml(FakeGpu()), asked).read().values
    alone = reader(FakeNvml(FakeGpu()), (refused,)).read().values
    own = {key for key in alone if not key.startswith("gpu_processes")}
    unknown = {metric for metric, labels in refused.gives if labels is None}  # until an answer tells the labels
    fake = FakeNvml(FakeGpu())
    refuse(fake, refused, code)
    gpus = reader(fake, asked)

    first, second = gpus.read(), gpus.read()

    for found in (first, second):
        assert {key: value for key, value in found.values.items() if key not in own} == {
            key: value for key, value in every.items() if key not in own
        }
        if code == TIMEOUT:
            known = {key for key in own if metric_name(key) not in unknown}
            assert {key: found.values.get(key, "absent") for key in own & set(found.values)} == dict.fromkeys(known)
            assert all(found.reasons[key].startswith("failed: ") for key in known)
        else:
            assert set(found.values) & own <= {key for key in own if refused.otherwise}
    metrics = {metric for metric, _ in refused.gives}
    shared = {metric for query in asked if query is not refused for metric, _ in query.gives}
    for metric in metrics - shared - {"gpu_throttle_active"}:
        missing = second.report[metric]
        if not (refused.otherwise and code == NOT_SUPPORTED and metric_name(metric) != "gpu_memory_reserved_bytes"):
            assert missing is not None
            assert missing.startswith("unsupported: " if code == NOT_SUPPORTED else "failed: ")


def refuse(fake: FakeNvml, query: Query, code: int) -> None:
    """Refuse the calls of one query and no others."""
    if "[" in query.name:
        constant, scope = query.name.rstrip("]").split("[")
        wanted = [(getattr(pynvml, constant), int(scope))]
        fake.refuse("nvmlDeviceGetFieldValues", code, when=lambda arguments: arguments[1] == wanted)
        return
    if query.name.startswith("nvmlDeviceGetNvLinkErrorCounter"):
        constant = query.name.rstrip(")").partition("(")[2]
        fake.refuse(
            "nvmlDeviceGetNvLinkErrorCounter", code, when=lambda arguments: arguments[2] == getattr(pynvml, constant)
        )
        return
    call, _, rest = query.name.rstrip(")").partition("(")
    arguments = tuple(
        getattr(pynvml, text) if text.startswith(("NVML_", "nvml")) else int(text) for text in rest.split(", ") if rest
    )
    fake.refuse(call, code, when=lambda given: tuple(given[1:]) == arguments)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (NOT_SUPPORTED, "unsupported: nvmlDeviceGetFanSpeed: not supported"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission: nvmlDeviceGetFanSpeed: no permission"),
    ],
)
def test_what_a_gpu_refused_for_good_is_not_asked_again_and_the_other_gpu_still_is(code: int, reason: str) -> None:
    fake = FakeNvml(FakeGpu("GPU-a"), FakeGpu("GPU-b"))
    passive = fake.gpus[0]
    fake.refuse("nvmlDeviceGetFanSpeed", code, when=lambda arguments: arguments[0] is passive)
    gpus = reader(fake)

    found = [gpus.read() for _ in range(3)][-1]

    assert 'gpu_fan_speed_ratio{gpu="0"}' not in found.values
    assert found.values['gpu_fan_speed_ratio{gpu="1"}'] == 0.3
    assert fake.calls["nvmlDeviceGetFanSpeed"] == 1 + 3
    assert found.report["gpu_fan_speed_ratio"] is None
    assert found.report['gpu_fan_speed_ratio{gpu="0"}'] == reason


def test_memory_that_a_gpu_shares_with_its_machine_is_absent_with_a_reason() -> None:
    fake = FakeNvml(FakeGpu())
    fake.refuse("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)
    found = reader(fake).read()

    assert not [key for key in found.values if key.startswith("gpu_memory_") and key.split("{")[0].endswith("_bytes")]
    assert str(found.report["gpu_memory_total_bytes"]).startswith("unsupported: nvmlDeviceGetMemoryInfo")
    assert found.values['gpu_utilization_ratio{gpu="0"}'] == 0.37


def test_an_older_driver_is_asked_in_the_older_way() -> None:
    fake = FakeNvml(FakeGpu())
    missing = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    fake.refuse("nvmlDeviceGetMemoryInfo", missing, when=lambda arguments: len(arguments) > 1)
    fake.refuse("nvmlDeviceGetCurrentClocksEventReasons", missing)
    found = reader(fake).read()

    assert found.values['gpu_memory_used_bytes{gpu="0"}'] == 3 << 30
    assert found.values['gpu_throttle_active{gpu="0",reason="software_thermal"}'] == 1
    assert str(found.report["gpu_memory_reserved_bytes"]).startswith("unsupported: ")
    assert found.report["gpu_memory_used_bytes"] is None


@pytest.mark.parametrize(
    ("lacking", "metric"),
    [
        ("nvmlDeviceGetFanSpeed", "gpu_fan_speed_ratio"),
        ("NVML_FI_DEV_MEMORY_TEMP", "gpu_memory_temperature_celsius"),
        ("NVML_CLOCK_VIDEO", "gpu_clock_hertz"),
    ],
)
def test_what_an_older_module_lacks_is_absent_with_a_reason(lacking: str, metric: str) -> None:
    class Older(FakeNvml):
        def __getattr__(self, name: str) -> Any:
            if name == lacking:
                raise AttributeError
            return super().__getattr__(name)

    found = reader(Older(FakeGpu())).read()

    assert found.values['gpu_power_watts{gpu="0"}'] == 123.456
    assert found.reasons == {}
    assert found.report[metric] in (None, f"unsupported: {lacking}: function not found")


def test_a_query_that_fails_once_is_null_once() -> None:
    fake = FakeNvml(FakeGpu())
    gpus = reader(fake)
    gpus.read()

    end = fake.refuse("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_UNKNOWN)
    missed = gpus.read()
    end()
    after = gpus.read()

    assert missed.values['gpu_power_watts{gpu="0"}'] is None
    assert missed.reasons == {'gpu_power_watts{gpu="0"}': "failed: nvmlDeviceGetPowerUsage: unknown"}
    assert (after.values['gpu_power_watts{gpu="0"}'], after.reasons) == (123.456, {})


@pytest.mark.parametrize(
    ("function", "answer", "metric"),
    [
        ("TotalEnergyConsumption", 2**64 - 1, "gpu_energy_joules_total"),
        ("PowerUsage", 2**32 - 1, "gpu_power_watts"),
        ("Temperature", 2**32 - 7, "gpu_temperature_celsius"),
        ("PerformanceState", pynvml.NVML_PSTATE_UNKNOWN, "gpu_performance_state"),
        ("EncoderUtilization", [2**32 - 1, 0], "gpu_encoder_utilization_ratio"),
        ("FanSpeed", "N/A", "gpu_fan_speed_ratio"),
        ("FanSpeed", float("nan"), "gpu_fan_speed_ratio"),
        ("EncoderUtilization", [], "gpu_encoder_utilization_ratio"),
        ("UtilizationRates", None, "gpu_utilization_ratio"),
    ],
)
def test_an_answer_that_is_no_value_is_null_and_never_a_number(function: str, answer: object, metric: str) -> None:
    fake = FakeNvml(FakeGpu())
    fake.gpus[0].answers[function] = object if answer is None else answer
    found = reader(fake).read()

    key = f'{metric}{{gpu="0"}}'
    assert found.values[key] is None
    assert found.reasons[key].partition(":")[0] in {"unsupported", "failed"}
    assert found.values['gpu_clock_hertz{gpu="0",clock="sm"}'] == 1_001_000_000


def test_links_without_errors_are_only_summed() -> None:
    fake = FakeNvml(FakeGpu())
    fake.gpus[0].answers["NvLinkErrorCounter"] = lambda link, kind: 7 if (link, kind) == (1, 0) else link_of_two(link)
    found = reader(fake).read()

    errors = {key: value for key, value in found.values.items() if "errors_total" in key and "nvlink" in key}
    assert errors == {
        'gpu_nvlink_errors_total{gpu="0",error="replay"}': 7,
        'gpu_nvlink_link_errors_total{gpu="0",link="1",error="replay"}': 7,
        **{f'gpu_nvlink_errors_total{{gpu="0",error="{kind}"}}': 0 for kind in list(queries.LINK_ERRORS)[1:]},
    }


def link_of_two(link: int) -> int:
    if link > 1:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return 0


def test_a_card_without_links_is_not_asked_for_them_again() -> None:
    fake = FakeNvml(FakeGpu(links=0))
    fake.refuse("nvmlDeviceGetNvLinkErrorCounter", NOT_SUPPORTED)
    gpus = reader(fake, LINKS)
    gpus.read()
    before = dict(fake.calls)
    found = gpus.read()

    for call in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkErrorCounter"):
        assert fake.calls[call] == before[call] > 0
    for query in LINKS:
        for metric, _ in query.gives:
            assert str(found.report[metric]).startswith("unsupported: ")


def test_one_sample_of_eight_gpus_with_18_links_fits_a_message() -> None:
    fake = FakeNvml(*[FakeGpu(f"GPU-{number}", links=18) for number in range(8)])
    fake_errors = fake.gpus[0].answers["NvLinkErrorCounter"]
    for gpu in fake.gpus[1:]:
        gpu.answers["NvLinkErrorCounter"] = lambda link, kind: 0 * fake_errors(link, kind)

    found = reader(fake).read()

    columns = {key: [value] for key, value in found.values.items()}
    assert len(msgspec.json.encode(columns)) < 80_000


def test_a_gpu_that_falls_off_the_bus_is_null_and_comes_back_under_its_name() -> None:
    fake = FakeNvml(FakeGpu("GPU-a"), FakeGpu("GPU-b"))
    clock = [0.0]
    session = NvmlSession(Nvml(fake), retry_s=10.0, monotonic=lambda: clock[0])
    gpus = LaneReader(session, EVERYTHING, with_processes=True)
    before = gpus.read()
    first, second = fake.gpus

    fake.refuse("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_GPU_IS_LOST, when=lambda arguments: arguments[0] is first)
    lost = gpus.read()
    calls = fake.calls["nvmlInit"]
    still = gpus.read()
    fake.gpus = [second]
    clock[0] = 11.0
    shifted = gpus.read()
    fake.gpus = [first, second]
    fake._refusals.clear()
    clock[0] = 100.0
    back = gpus.read()

    for found in (lost, still, shifted):
        assert of_gpu(found, "0") == dict.fromkeys(of_gpu(before, "0"))
        assert {found.reasons[key] for key in of_gpu(before, "0")} & {""} == set()
        assert of_gpu(found, "1") == of_gpu(before, "1")
        assert 'gpu_info{gpu="0"}' in found.report
    assert lost.reasons['gpu_power_watts{gpu="0"}'] == "failed: nvmlDeviceGetPowerUsage: gpu is lost"
    assert calls == 1
    assert shifted.reasons['gpu_power_watts{gpu="0"}'] == "not found: GPU 0 is no longer listed"
    assert of_gpu(back, "0") == of_gpu(before, "0")
    assert fake.running == 1


def test_nvml_that_somebody_ended_is_started_again() -> None:
    fake = FakeNvml(FakeGpu())
    clock = [0.0]
    gpus = LaneReader(NvmlSession(Nvml(fake), monotonic=lambda: clock[0]), queries.FAST)
    gpus.read()
    fake.nvmlShutdown()
    clock[0] = 60.0

    lost = gpus.read()
    clock[0] = 120.0
    again = gpus.read()

    assert "uninitialized" in lost.reasons['gpu_power_watts{gpu="0"}']
    assert again.values['gpu_power_watts{gpu="0"}'] == 123.456


def test_a_gpu_that_we_may_not_open_is_named_and_the_other_is_read() -> None:
    fake = FakeNvml(FakeGpu("GPU-a"), FakeGpu("GPU-b"))
    denied = pynvml.NVML_ERROR_NO_PERMISSION
    fake.refuse("nvmlDeviceGetHandleByIndex", denied, when=lambda arguments: arguments[0] == 0)
    found = reader(fake).read()

    assert of_gpu(found, "0") == {}
    assert found.values['gpu_power_watts{gpu="1"}'] == 123.456
    assert found.report['gpu_info{gpu="0"}'] == "no permission: nvmlDeviceGetHandleByIndex: no permission"


def test_each_mig_instance_has_series_of_its_own() -> None:
    second = FakeMig("MIG-b", processes=FakeGpu().compute)
    split = FakeGpu(instances={0: FakeMig("MIG-a"), 3: second})
    fake = FakeNvml(split, FakeGpu("GPU-1"))
    fake.refuse("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED, when=lambda arguments: arguments[0] is second)
    fake.refuse("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED, when=lambda arguments: arguments[0] is split)
    gpus = reader(fake)

    found = gpus.read()
    assert split.instances is not None
    del split.instances[0]
    later = gpus.read()
    fake.refuse("nvmlDeviceGetMigMode", NOT_SUPPORTED, when=lambda arguments: arguments[0] is not split)
    fake.refuse("nvmlDeviceGetMigMode", TIMEOUT, when=lambda arguments: arguments[0] is split)
    unanswered = gpus.read()

    assert found.values['gpu_mig_memory_total_bytes{gpu="0",mig="0"}'] == 10 << 30
    assert found.values['gpu_mig_multiprocessors{gpu="0",mig="3"}'] == 16
    assert found.values['gpu_mig_processes{gpu="0",mig="3"}'] == 2
    name = "NVIDIA Test 80GB MIG 1g.10gb"
    assert found.values[f'gpu_mig_info{{gpu="0",mig="3",uuid="MIG-b",name="{name}"}}'] == 1
    assert not [key for key in found.values if 'gpu="1",mig' in key]
    assert found.report["gpu_mig_memory_total_bytes"] is None
    refused = found.report['gpu_mig_memory_total_bytes{gpu="0",mig="3"}']
    assert refused == "unsupported: nvmlDeviceGetMemoryInfo: not supported"
    assert {key for key in later.values if 'mig="0"' in key} == set()
    assert later.values.keys() == unanswered.values.keys() >= {'gpu_mig_processes{gpu="0",mig="3"}'}


def test_hardware_is_described_without_a_serial_number() -> None:
    fake = FakeNvml(FakeGpu(), FakeGpu("GPU-1"))
    del fake.gpus[1].answers["MemoryInfo"]
    session = NvmlSession(Nvml(fake))
    LaneReader(session, queries.SLOW).read()

    first, second = session.hardware()
    assert first == {
        "gpu": "0", "model": "NVIDIA Test 80GB", "uuid": "GPU-0", "memory_bytes": 80 << 30, "mig": False,
        "driver_version": "580.1", "cuda_version": "13.0",
    }  # fmt: skip
    assert "memory_bytes" not in second
    assert fake.calls["nvmlDeviceGetSerial"] == 0
