"""A recording as a job leaves it: hosts with processors, GPUs, energy, sensors and InfiniBand, and a job on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from tests.report.tables import Column, samples

GIB = 2**30
KEY = "4711"

HARDWARE: dict[str, Any] = {
    "simulated": False, "model": "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "architecture": "x86_64", "sockets": 2,
    "cores": 4, "threads": 8, "memory_bytes": 64 * GIB,
    "gpus": [{"gpu": str(at), "model": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * GIB} for at in range(2)],
    "os": "Rocky Linux 9.4", "kernel": "5.14.0-427.el9.x86_64", "virtualisation": None,
    "emission_factor": {"region": "FR", "name": "France", "gco2e_per_kwh": 56.0, "date": "2023", "source": "Ember",
                        "table": "carbon_intensity.csv", "pue": 1.2},
}  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    """Return what a tool knows of a job."""
    return {
        "job_id": "4711", "scheduler": "slurm", "cluster": "atlas", "name": "train-resnet", "user": "ada",
        "nodes": ["n1", "n2"], "command": ["python", "train.py", "--epochs", "20"],
        "started": "2025-11-21T04:40:00+00:00", "ended": "2025-11-21T04:50:00+00:00", "exit_code": 0, "reason": None,
        "time_limit_s": 3600.0, "method": "cgroup", "confidence": "certain", "memory_limit_bytes": 16 * GIB, "cpus": 4,
    } | changes  # fmt: skip


class RecordedJob:
    """Makes the columns of one node; ``load`` is how many CPUs the job keeps busy, and GPU 1 idles."""

    def __init__(
        self, *, samples: int = 600, interval_s: float = 1.0, load: float = 3.4, peak: float = 14.6 * GIB
    ) -> None:
        self.samples, self.interval_s, self.load, self.peak = samples, interval_s, load, peak

    def _each(self, value: Any) -> Column:
        return [float(value(at * self.interval_s)) for at in range(self.samples)]

    def host(self) -> dict[str, Column]:
        """Return the columns of the stream of the machine."""
        wave = [0.5 + 0.4 * math.sin(at / 37) for at in range(self.samples)]
        columns: dict[str, Column] = {
            "host_cpu_busy_ratio": [min(1.0, self.load / 8 * (0.8 + 0.4 * one)) for one in wave],
            "host_cpu_count": self._each(lambda _t: 8),
            **{f'host_cpu_seconds_total{{mode="{mode}"}}': self._each(lambda t, share=share: 5000 + share * 8 * t)
               for mode, share in (("user", self.load / 8 * 0.9), ("system", self.load / 8 * 0.1), ("iowait", 0.13),
                                   ("steal", 0.0), ("idle", 0.87 - self.load / 8))},
            "host_memory_total_bytes": self._each(lambda _t: 64 * GIB),
            "host_memory_available_bytes": [(60 - 20 * one) * GIB for one in wave],
            "host_memory_used_bytes": [(4 + 20 * one) * GIB for one in wave],
            'host_disk_read_bytes_total{device="nvme0n1"}': self._each(lambda t: 1e9 + 3e6 * t),
            'host_disk_written_bytes_total{device="nvme0n1"}': self._each(lambda t: 1e9 + 8e6 * t),
            'host_network_receive_bytes_total{interface="eth0"}': self._each(lambda t: 5e6 * t),
            'host_network_transmit_bytes_total{interface="eth0"}': self._each(lambda t: 4e6 * t),
            'infiniband_receive_bytes_total{device="mlx5_0",port="1"}': self._each(lambda t: 3e8 * t),
            'infiniband_transmit_bytes_total{device="mlx5_0",port="1"}': self._each(lambda t: 3e8 * t),
            'host_pressure_seconds_total{resource="io",stalled="full"}': self._each(lambda t: 0.16 * t),
            'node_energy_joules_total{method="components"}': self._each(lambda t: 10 + 410 * t),
            'host_temperature_celsius{chip="coretemp",sensor="Package id 0"}': [55 + 20 * one for one in wave],
            "agent_cpu_seconds_total": self._each(lambda t: 0.001 * t),
        }  # fmt: skip
        for gpu in range(2):
            is_idle = gpu == 1
            use = [0.01 if is_idle else 0.9 * one + 0.1 for one in wave]
            columns |= {
                f'gpu_utilization_ratio{{gpu="{gpu}"}}': list(use),
                f'gpu_memory_used_bytes{{gpu="{gpu}"}}': [(0.5 if is_idle else 62) * GIB for _ in wave],
                f'gpu_memory_total_bytes{{gpu="{gpu}"}}': self._each(lambda _t: 80 * GIB),
                f'gpu_power_watts{{gpu="{gpu}"}}': [80 + 500 * one for one in use],
                f'gpu_temperature_celsius{{gpu="{gpu}"}}': [35 + 40 * one for one in use],
                f'gpu_throttle_active{{gpu="{gpu}",reason="hardware_thermal"}}': [
                    1.0 if gpu == 0 and at % 10 == 0 else 0.0 for at in range(self.samples)
                ],
            }
        return columns

    def job(self) -> dict[str, Column]:
        """Return the columns of the stream of the job."""
        half = self.samples / 2 or 1
        rss = [self.peak * min(1.0, 0.1 + at / half) * (1 if at < 1.6 * half else 0.3) for at in range(self.samples)]
        return {
            "job_cpu_user_seconds_total": self._each(lambda t: 0.9 * self.load * t),
            "job_cpu_system_seconds_total": self._each(lambda t: 0.1 * self.load * t),
            "job_cpus_busy": self._each(lambda t: self.load * (1 + 0.1 * math.sin(t / 20))),
            "job_memory_rss_bytes": list(rss),
            "job_memory_peak_bytes": [max(rss[: at + 1]) for at in range(self.samples)],
            "job_processes": self._each(lambda _t: 5),
            "job_storage_read_bytes_total": self._each(lambda t: 2.5e6 * t),
            "job_storage_written_bytes_total": self._each(lambda t: 7e6 * t),
            "job_energy_joules_total": self._each(lambda t: 260 * t),
            "job_energy_kilowatt_hours_total": self._each(lambda t: 260 * t / 3.6e6),
            "job_emissions_grams_total": self._each(lambda t: 260 * t / 3.6e6 * 56 * 1.2),
            "job_cpu_throttled_seconds_total": self._each(lambda _t: 0.0),
            'job_gpu_memory_bytes{gpu="0"}': self._each(lambda _t: 62 * GIB),
            'job_gpu_processes{gpu="0"}': self._each(lambda _t: 1),
            'job_method_info{of="peak",method="cgroup-v2"}': self._each(lambda _t: 1),
        }  # fmt: skip


def user_values(node_id: str) -> Batch:
    """Return what a training reports: a loss and an accuracy."""
    columns: dict[str, Column] = {
        'user_value{name="loss"}': [2.3 * math.exp(-at / 6) + 0.05 for at in range(20)],
        'user_value{name="accuracy"}': [1 - 0.9 * math.exp(-at / 5) for at in range(20)],
        'user_step{name="loss"}': [float(at) for at in range(20)],
    }
    return samples(columns, node=node_id, stream="user", step_s=30.0)


def write_job(
    path: Path, *, nodes: tuple[str, ...] = ("n1", "n2"), told: Mapping[str, Any] | None = None,
    series: tuple[str, ...] = ("",), **of_job: Any,
) -> Path:  # fmt: skip
    """Write a job into one recording, with series that begin so; the nodes after the first are less loaded."""
    reasons = {"rapl_energy_joules_total": "no permission: /sys/class/powercap/intel-rapl:0/energy_uj is for root only",
               "host_fan_rotation_hertz": "not found: no chip has a fan"}  # fmt: skip
    with Recording(path) as recording:
        for at, node in enumerate(nodes):
            one = RecordedJob(**({"load": 3.4 - at * 1.2, "peak": (14.6 - 6 * at) * GIB} | of_job))
            for stream, columns in {"host": one.host(), f"job-{KEY}": one.job()}.items():
                chosen = {name: values for name, values in columns.items() if values and name.startswith(series)}
                if chosen:
                    recording.append([samples(chosen, node=node, stream=stream, step_s=one.interval_s)])
            recording.describe(
                node,
                1,
                {
                    "hostname": node,
                    "hardware": HARDWARE,
                    "capabilities": reasons,
                    "labels": {"system": "atlas", "env": "gcc-13"},
                    "jobs": {KEY: document(**{"nodes": list(nodes), "gpus": ["0", "1"]} | dict(told or {}))},
                    "tool": {"version": "0.4.0", "interval_s": one.interval_s, "clock_offset_s": 0.01 * at},
                },
            )
        if of_job.get("samples", 1):
            recording.append([user_values(nodes[0])])
    return path
