"""The columns of perfmon's tables, each with the metrics that it follows from and perfmon's unit.

Source of keys and units: the manual of perfmon and its modules of 2021 that read processes, perf and GPUs. Of the
headers its manual shows some; the others follow their pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fedmon.common.metrics.series import metric_name, series, split_series
from fedmon.report.views.quantity import Computed, Counted, Growth, Quantity, Sum
from fedmon.report.views.survey import Place
from fedmon.report.views.view_table import Column

MIB = 1024**2
_LINE_BYTES = 64
_CPU = ("job_cpu_user_seconds_total", "job_cpu_system_seconds_total")
_RAPL = "rapl_energy_joules_total"
_COUNTED_SECONDS = "perf_counted_seconds_total"
_READS = ("unc_m_cas_count.rd", "data_reads")
"""Events of memory controllers that count lines read, of servers and of clients."""
_INSIDE = re.compile(r"package-(\d+)-(core|uncore|dram)")


def _job(*names: str, times: float = 1.0) -> Sum:
    return Sum(series=names, times=times, is_of_job=True)


def _column(key: str, header: str, quantity: Quantity, *, is_whole: bool = True) -> Column:
    return Column(path=tuple(key.split(".")), header=header, quantity=quantity, is_whole=is_whole)


CPU: tuple[Column, ...] = (
    _column("cpu_time", "CPU time [s]", _job(*_CPU), is_whole=False),
    _column("cpu_times.user", "CPU time (user) [s]", _job(_CPU[0]), is_whole=False),
    _column("cpu_times.system", "CPU time (system) [s]", _job(_CPU[1]), is_whole=False),
    _column("cpu_percent", "CPU usage [%]", _job("job_cpus_busy", times=100), is_whole=False),
    _column(
        "cpu_percent_sys",
        "CPU usage of the host [%]",
        Sum(series=("host_cpu_busy_ratio",), times=100),
        is_whole=False,
    ),
    _column("memory_info.rss", "Memory (rss) [bytes]", _job("job_memory_rss_bytes")),
    _column("memory_info.vms", "Memory (vms) [bytes]", _job("job_memory_vms_bytes")),
    _column("memory_info.shared", "Memory (shared) [bytes]", _job("job_memory_shared_bytes")),
    _column("memory_full_info.uss", "Memory (uss) [bytes]", _job("job_memory_uss_bytes")),
    _column("memory_full_info.pss", "Memory (pss) [bytes]", _job("job_memory_pss_bytes")),
    _column("memory_full_info.swap", "Memory (swap) [bytes]", _job("job_memory_swap_bytes")),
    _column(
        "memory_percent",
        "Memory usage [%]",
        Computed(
            host=("host_memory_total_bytes",),
            job=("job_memory_rss_bytes",),
            compute=lambda whole, rss: 100 * rss / whole,
        ),
        is_whole=False,
    ),
    *(
        Column(
            path=("memory_bw",),
            header="Memory (read) bandwidth [MiB/s]",
            quantity=Growth(
                series=(series("perf_events_total", group=group, event=event),),
                clock=_COUNTED_SECONDS,
                times=_LINE_BYTES,
                per_second=True,
            ),
            table_times=1 / MIB,
            is_whole=False,
        )
        for group, event in zip(("memory_server", "memory_client"), _READS, strict=True)
    ),
    _column("io_counters.read_count", "IO read count", _job("job_io_reads_total")),
    _column("io_counters.write_count", "IO write count", _job("job_io_writes_total")),
    _column("io_counters.read_bytes", "IO read data [bytes]", _job("job_storage_read_bytes_total")),
    _column("io_counters.write_bytes", "IO written data [bytes]", _job("job_storage_written_bytes_total")),
    _column("num_threads", "Number of threads", _job("job_threads")),
    _column("num_fds", "Number of file descriptors", _job("job_file_descriptors")),
    *(
        _column(
            f"net_io_counters.{what}_{short}",
            f"Net {short} {unit}",
            Counted(metric=f"host_network_{way}_{what}_total"),
        )
        for what, unit in (("bytes", "data [bytes]"), ("packets", "packets"))
        for short, way in (("sent", "transmit"), ("recv", "receive"))
    ),
    *(
        _column(
            f"ib_io_counters.port_{short}_{what}",
            f"IB {word} {unit}",
            Counted(metric=f"infiniband_{way}_{counted}_total"),
        )
        for what, counted, unit in (("data", "bytes", "data [bytes]"), ("packets", "packets", "packets"))
        for short, word, way in (("xmit", "sent", "transmit"), ("rcv", "recv", "receive"))
    ),
)
"""The group ``cpu_metrics``, without energy."""


def cpu_columns(place: Place) -> Sequence[Column]:
    """Return the columns of ``cpu_metrics`` for one place, with the zones of energy that it has."""
    return (*CPU, *_rapl(place))


def _rapl(place: Place) -> Iterator[Column]:
    for name in place.of_host:
        if metric_name(name) == _RAPL:
            zone = rapl_key(split_series(name)[1].get("zone", ""))
            yield Column(
                path=("rapl_powercap", zone),
                header=f"RAPL {zone.replace('-', ' ')} [uJ]",
                quantity=Counted(metric=name, times=1e6),
            )


def rapl_key(zone: str) -> str:
    """Return perfmon's name of a zone: ``package-0``, ``core-0``, ``uncore-0``, ``dram-0``; others keep theirs."""
    inside = _INSIDE.fullmatch(zone)
    return f"{inside[2]}-{inside[1]}" if inside else zone


def gpu_columns(gpu: str) -> tuple[Column, ...]:
    """Return the columns of ``nv_gpu_metrics`` for one GPU, by its number."""

    def of(metric: str, *, times: float = 1.0, job: bool = False, **labels: str) -> Sum:
        return Sum(series=(series(metric, gpu=gpu, **labels),), times=times, is_of_job=job)

    def violation(policy: str) -> str:
        return series("gpu_violation_seconds_total", gpu=gpu, policy=policy)

    def ecc(kind: str) -> Sum:
        return of("gpu_ecc_errors_total", counter="aggregate", type=kind)

    return (
        *(
            _column(f"clock_info.{clock}", f"Clock ({clock}) [MHz]", of("gpu_clock_hertz", times=1e-6, clock=clock))
            for clock in ("graphics", "sm", "memory")
        ),
        _column("ecc_errors.sp", "ECC errors (corrected, lifetime)", ecc("corrected")),
        _column("ecc_errors.dp", "ECC errors (uncorrected, lifetime)", ecc("uncorrected")),
        _column("memory_used.gpu_memory", "GPU memory used [bytes]", of("gpu_memory_used_bytes")),
        _column("memory_used.bar1_memory", "BAR1 memory used [bytes]", of("gpu_bar1_used_bytes")),
        _column(
            "utilization_rates.gpu", "GPU utilization [%]", of("gpu_utilization_ratio", times=100), is_whole=False
        ),
        _column(
            "utilization_rates.memory",
            "GPU memory utilization [%]",
            of("gpu_memory_utilization_ratio", times=100),
            is_whole=False,
        ),
        _column(
            "encoder_util", "Encoder utilization [%]", of("gpu_encoder_utilization_ratio", times=100), is_whole=False
        ),
        _column(
            "decoder_util", "Decoder utilization [%]", of("gpu_decoder_utilization_ratio", times=100), is_whole=False
        ),
        _column("power_usage", "Power usage [mW]", of("gpu_power_watts", times=1000)),
        _column(
            "violation",
            "Clock violation, power and thermal [ns]",
            Sum(series=(violation("power"), violation("thermal")), times=1e9),
        ),
        _column("temperature", "GPU temperature [C]", of("gpu_temperature_celsius"), is_whole=False),
        _column("fan_speed", "Fan speed [%]", of("gpu_fan_speed_ratio", times=100), is_whole=False),
        _column("num_procs", "Number of compute processes", of("gpu_processes", type="compute")),
        _column("pci_thgpt.send", "PCIe sent [KB/s]", of("gpu_pcie_transmit_bytes_per_second", times=1e-3)),
        _column("pci_thgpt.recv", "PCIe recv [KB/s]", of("gpu_pcie_receive_bytes_per_second", times=1e-3)),
        _column("job_num_procs", "Number of processes of the job", of("job_gpu_processes", job=True)),
        _column("job_memory_used", "GPU memory used by the job [bytes]", of("job_gpu_memory_bytes", job=True)),
        _column(
            "job_utilization", "GPU utilization by the job [%]", of("job_gpu_sm_ratio", times=100, job=True),
            is_whole=False,
        ),
    )  # fmt: skip
