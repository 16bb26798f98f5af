"""Metrics of NVIDIA GPUs."""

from __future__ import annotations

import functools

from fedmon.common.metrics.metric import Metric, Unit, metrics

_MIG = ("gpu", "mig")
_of_each = functools.partial(metrics, labels=("gpu",))

ROWS: list[Metric] = [
    *metrics(
        "nvmlDeviceGetUUID, nvmlDeviceGetName, nvmlSystemGetDriverVersion",
        {"gpu_info": "1 for each GPU, with identity, model and driver as labels."},
        labels=("gpu", "uuid", "name", "driver"),
    ),
    *_of_each(
        "nvmlDeviceGetUtilizationRates",
        {
            "gpu_utilization_ratio": "Share of the driver's last sampling period in which a kernel ran, 0 to 1.",
            "gpu_memory_utilization_ratio": "Share of that period in which device memory was read or written, 0 to 1.",
        },
    ),
    *_of_each(
        "nvmlDeviceGetEncoderUtilization, nvmlDeviceGetDecoderUtilization",
        {
            "gpu_encoder_utilization_ratio": "Busy share of the video encoder, 0 to 1.",
            "gpu_decoder_utilization_ratio": "Busy share of the video decoder, 0 to 1.",
        },
    ),
    *_of_each(
        "nvmlDeviceGetMemoryInfo",
        {
            "gpu_memory_total_bytes": "Device memory that the GPU has; absent if it shares that of the machine.",
            "gpu_memory_used_bytes": "Device memory that programs use; before driver 510 including the driver's share.",
            "gpu_memory_free_bytes": "Device memory that nothing uses.",
            "gpu_memory_reserved_bytes": "Device memory that driver and firmware keep for themselves.",
        },
    ),
    *_of_each(
        "nvmlDeviceGetBAR1MemoryInfo",
        {
            "gpu_bar1_total_bytes": "Window through which CPU and other devices reach device memory (BAR1).",
            "gpu_bar1_used_bytes": "Part of that window in use.",
            "gpu_bar1_free_bytes": "Part of that window that is free.",
        },
    ),
    *metrics(
        "nvmlDeviceGetClockInfo, nvmlDeviceGetMaxClockInfo",
        {
            "gpu_clock_hertz": "Present clock: graphics, sm, memory or video.",
            "gpu_clock_max_hertz": "The highest clock that the GPU can run at.",
        },
        labels=("gpu", "clock"),
    ),
    *_of_each(
        "nvmlDeviceGetTemperature, field NVML_FI_DEV_MEMORY_TEMP",
        {
            "gpu_temperature_celsius": "Temperature of the GPU's die.",
            "gpu_memory_temperature_celsius": "Temperature of the device memory.",
        },
    ),
    *_of_each(
        "nvmlDeviceGetFanSpeed",
        {"gpu_fan_speed_ratio": "Speed that the fan is told to run at, 1 is its full speed; can be above 1."},
    ),
    *_of_each("nvmlDeviceGetPowerUsage", {"gpu_power_watts": "Power that the board draws."}),
    *_of_each(
        "nvmlDeviceGetTotalEnergyConsumption",
        {"gpu_energy_joules_total": "Energy that the GPU used since its driver was loaded."},
    ),
    *metrics(
        "nvmlDeviceGetPowerManagementLimit, nvmlDeviceGetEnforcedPowerLimit and their like",
        {"gpu_power_limit_watts": "Limits of the power: set, enforced, default, lowest and highest that can be set."},
        labels=("gpu", "limit"),
    ),
    *_of_each(
        "nvmlDeviceGetPerformanceState",
        {"gpu_performance_state": "Performance state, from 0 (P0, the fastest) to 15."},
        unit=Unit.NONE,
    ),
    *metrics(
        "nvmlDeviceGetCurrentClocksEventReasons",
        {"gpu_throttle_active": "1 while this reason keeps the clocks below their highest, else 0."},
        labels=("gpu", "reason"),
        unit=Unit.NONE,
    ),
    *metrics(
        "nvmlDeviceGetViolationStatus",
        {"gpu_violation_seconds_total": "Time for which this policy held the clocks down."},
        labels=("gpu", "policy"),
    ),
    *metrics(
        "nvmlDeviceGetTotalEccErrors",
        {
            "gpu_ecc_errors_total": "Memory errors found: since the driver was loaded (volatile) or ever (aggregate),"
            " corrected or uncorrected."
        },
        labels=("gpu", "counter", "type"),
    ),
    *_of_each("nvmlDeviceGetEccMode", {"gpu_ecc_enabled": "1 if ECC is on, else 0."}, unit=Unit.NONE),
    *metrics(
        "nvmlDeviceGetRetiredPages",
        {"gpu_retired_pages": "Pages of device memory taken out of use, after single_bit or double_bit errors."},
        labels=("gpu", "cause"),
    ),
    *_of_each(
        "nvmlDeviceGetRetiredPagesPendingStatus",
        {"gpu_page_retirement_pending": "1 where pages are to be retired at the next start, else 0."},
        unit=Unit.NONE,
    ),
    *metrics(
        "nvmlDeviceGetRemappedRows",
        {"gpu_remapped_rows": "Rows of device memory replaced by spare ones, after corrected or uncorrected errors."},
        labels=("gpu", "cause"),
    ),
    *_of_each(
        "nvmlDeviceGetRemappedRows",
        {
            "gpu_row_remap_pending": "1 if a row is to be replaced at the next reset, else 0.",
            "gpu_row_remap_failed": "1 if a row could not be replaced, else 0.",
        },
        unit=Unit.NONE,
    ),
    *_of_each(
        "nvmlDeviceGetPcieThroughput",
        {
            "gpu_pcie_transmit_bytes_per_second": "Bytes sent over PCIe, in a window of 20 ms.",
            "gpu_pcie_receive_bytes_per_second": "Bytes received over PCIe, in a window of 20 ms.",
        },
    ),
    *_of_each(
        "nvmlDeviceGetCurrPcieLinkGeneration, nvmlDeviceGetCurrPcieLinkWidth, and their nvmlDeviceGetMax like",
        {
            "gpu_pcie_link_generation": "PCIe generation that the link runs at now; low while the GPU is idle.",
            "gpu_pcie_link_generation_max": "The highest PCIe generation that GPU and slot can run at.",
            "gpu_pcie_link_lanes": "PCIe lanes that the link uses now.",
            "gpu_pcie_link_lanes_max": "The most PCIe lanes that GPU and slot can use.",
        },
        unit=Unit.NONE,
    ),
    *_of_each("nvmlDeviceGetPcieReplayCounter", {"gpu_pcie_replays_total": "Packets that PCIe had to send again."}),
    *metrics(
        "nvmlDeviceGetNvLinkState",
        {"gpu_nvlink_active": "1 where the NVLink is up, else 0; 2 and 3 where NVML says asleep or without traffic."},
        labels=("gpu", "link"),
        unit=Unit.NONE,
    ),
    *metrics(
        "fields NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*, else NVML_FI_DEV_NVLINK_COUNT_*_BYTES",
        {
            "gpu_nvlink_transmit_bytes_total": "Bytes sent over an NVLink.",
            "gpu_nvlink_receive_bytes_total": "Bytes received over an NVLink.",
        },
        labels=("gpu", "link"),
    ),
    *metrics(
        "nvmlDeviceGetNvLinkErrorCounter",
        {
            "gpu_nvlink_errors_total": "Errors of all NVLinks of a GPU together: replay, recovery, crc_flit, crc_data,"
            " ecc_data."
        },
        labels=("gpu", "error"),
    ),
    *metrics(
        "nvmlDeviceGetNvLinkErrorCounter",
        {"gpu_nvlink_link_errors_total": "Errors of one NVLink; named are only links that have had any."},
        labels=("gpu", "link", "error"),
    ),
    *metrics(
        "nvmlDeviceGetComputeRunningProcesses, and its Graphics and MPSCompute like",
        {"gpu_processes": "Processes with a context on the GPU: compute, graphics or mps."},
        labels=("gpu", "type"),
    ),
    *metrics(
        "nvmlDeviceGetUUID, nvmlDeviceGetName of the instance",
        {"gpu_mig_info": "1 for each MIG instance, whose identity and profile its labels tell."},
        labels=("gpu", "mig", "uuid", "name"),
    ),
    *metrics(
        "nvmlDeviceGetMemoryInfo of the instance",
        {
            "gpu_mig_memory_total_bytes": "Device memory of a MIG instance.",
            "gpu_mig_memory_used_bytes": "Device memory of a MIG instance in use.",
            "gpu_mig_memory_free_bytes": "Device memory of a MIG instance that nothing uses.",
        },
        labels=_MIG,
    ),
    *metrics(
        "nvmlDeviceGetAttributes_v2",
        {"gpu_mig_multiprocessors": "Streaming multiprocessors of a MIG instance."},
        labels=_MIG,
    ),
    *metrics(
        "nvmlDeviceGetComputeRunningProcesses of the instance",
        {"gpu_mig_processes": "Processes with a compute context on a MIG instance."},
        labels=_MIG,
    ),
    *_of_each(
        "lists of running processes of NVML",
        {"job_gpu_memory_bytes": "Device memory of a GPU that the processes of the job use together."},
    ),
    *_of_each(
        "nvmlDeviceGetProcessUtilization",
        {"job_gpu_sm_ratio": "Share of a GPU's multiprocessors that the processes of the job kept busy, 0 to 1."},
    ),
    *_of_each(
        "lists of running processes of NVML",
        {"job_gpu_processes": "Processes of the job that have a context on a GPU."},
    ),
]
