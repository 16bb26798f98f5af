"""Recordings as perfmon wrote them: its groups of metrics as tables, and its JSON files.

Source of keys and units: the manual of perfmon and its modules of 2021 that read processes, perf and GPUs. Of the
headers its manual shows some; the others follow their pattern.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedmon.common.files import replacing, storage_errors
from fedmon.common.metrics.series import metric_name, series
from fedmon.report.blocks import labels_of
from fedmon.report.export import Table
from fedmon.report.rates import PERF_CLOCK
from fedmon.report.source import Source, told_number
from fedmon.report.views.view_table import (
    Computed,
    Counted,
    Growth,
    Instants,
    Names,
    Place,
    ViewColumn,
    ViewQuantity,
    ViewSection,
    ViewTable,
    by_place,
    section,
    survey,
)

SECONDS, EXACT = "time_stamps", "timestamps"
"""Whole seconds, as perfmon wrote them, and the exact time in Unix seconds under the key that its manual names."""
_TOP = ("host_names", "sampling_frequency", "labels")

EVENTS = "perf_events_total"

GROUPS: Mapping[str, str] = {
    "cycles": "hardware_events",
    "cache": "hardware_events",
    "branches": "hardware_events",
    "software": "software_events",
    "l2": "L2",
    "l2_requests": "L2",
    "l2cache": "L2cache",
    "l2_misses": "L2cache",
    "l2_ratio": "L2cache",
    "l3": "L3",
    "l3cache": "L3cache",
    "flops_sp": "FLOPS_SP",
    "flops_dp": "FLOPS_DP",
    "flops_any": "FLOPS_any",
}
"""perfmon's group of each of our groups of events."""

MIB = 1024**2
_LINE_BYTES = 64
_CPU = ("job_cpu_user_seconds_total", "job_cpu_system_seconds_total")
_RAPL = "rapl_energy_joules_total"
_READS = ("unc_m_cas_count.rd", "data_reads")
"""Events of memory controllers that count lines read, of servers and of clients."""
_INSIDE = re.compile(r"^package-(\d+)-(core|uncore|dram)$")

CPU_METRICS, PERF_METRICS, GPU_METRICS, META_DATA = "cpu_metrics", "perf_metrics", "nv_gpu_metrics", "meta_data"
NAMES = Names(host="Host", seconds="Timestamps", time="Time", job="Job")

_METRICS = ("job_*", "perf_*", "gpu_*", "infiniband_*", "rapl_*", "host_network_*", "host_cpu_busy_ratio",
            "host_memory_total_bytes")  # fmt: skip


def tables(source: Source, job: str | None = None) -> list[Table]:
    """Return a table for each of perfmon's groups of which anything was measured.

    Rows are those of one job, or of all, by job, host and time; a GPU N is a host ``gpu-N.<host>``. Raises
    NotFoundError when there is nothing of the job.
    """
    return [*_views(source, survey(source, job, metrics=_METRICS))]


def write_json(source: Source, folder: Path, job: str | None = None, *, name_job: bool = False) -> list[Path]:
    """Write a file for each of perfmon's groups into a folder, and return them.

    They are called ``cpu_metrics.json`` and so on; with several jobs in the recordings, or with ``name_job``,
    ``cpu_metrics_<job>.json``. Each file appears whole or not at all. Raises NotFoundError when there is nothing of the
    job, InvalidInputError when something else is in a file's place, and StorageError.
    """
    places = survey(source, job, metrics=_METRICS)
    jobs = list(dict.fromkeys(place.job for place in places))
    written = []
    for one in jobs:
        of_job = [place for place in places if place.job == one]
        ending = f"_{one}.json" if one is not None and (name_job or len(jobs) > 1) else ".json"
        views = _views(source, of_job)
        interval_s = next((each.interval_s for view in views for each in view.sections if each.interval_s), None)
        names = [place.host.name for place in of_job]
        written.append(_write(folder / f"{META_DATA}{ending}", names, of_job, interval_s, map(_known, of_job)))
        for view in views:
            names, of_names = [each.name for each in view.sections], [each.place for each in view.sections]
            hosts = (_host(each, at) for each, at in by_place(source, view.sections))
            written.append(_write(folder / f"{view.name}{ending}", names, of_names, interval_s, hosts))
    return written


def _views(source: Source, places: Sequence[Place]) -> list[ViewTable]:
    groups: dict[str, list[ViewSection]] = {CPU_METRICS: [], PERF_METRICS: [], GPU_METRICS: []}
    for place in places:
        at = place.instants(source)
        name = place.host.name
        groups[CPU_METRICS] += section(name, place, cpu_columns(at), at)
        groups[PERF_METRICS] += section(name, place, perf_columns(at, is_of_job=place.job is not None), at)
        for gpu in gpus(at):
            groups[GPU_METRICS] += section(f"gpu-{gpu}.{name}", place, gpu_columns(gpu), at)
    groups[PERF_METRICS] = _told_apart(groups[PERF_METRICS])
    return [ViewTable(name, NAMES, source, sections) for name, sections in groups.items() if sections]


def gpus(at: Instants) -> list[str]:
    """Return the numbers of the GPUs of a machine, in order."""
    numbers = {labels_of(name).get("gpu", "") for name in at.host if name.startswith("gpu_")}
    return sorted(numbers, key=lambda number: (len(number), number))


def _of(*names: str, times: float = 1.0) -> Computed:
    return Computed(series=names, times=times)


def _column(key: str, header: str, quantity: ViewQuantity, *, is_whole: bool = True) -> ViewColumn:
    return ViewColumn(path=tuple(key.split(".")), header=header, quantity=quantity, is_whole=is_whole)


_fraction = functools.partial(_column, is_whole=False)


CPU: tuple[ViewColumn, ...] = (
    _fraction("cpu_time", "CPU time [s]", _of(*_CPU)),
    _fraction("cpu_times.user", "CPU time (user) [s]", _of(_CPU[0])),
    _fraction("cpu_times.system", "CPU time (system) [s]", _of(_CPU[1])),
    _fraction("cpu_percent", "CPU usage [%]", _of("job_cpus_busy", times=100)),
    _fraction("cpu_percent_sys", "CPU usage of the host [%]", _of("host_cpu_busy_ratio", times=100)),
    _column("memory_info.rss", "Memory (rss) [bytes]", _of("job_memory_rss_bytes")),
    _column("memory_info.vms", "Memory (vms) [bytes]", _of("job_memory_vms_bytes")),
    _column("memory_info.shared", "Memory (shared) [bytes]", _of("job_memory_shared_bytes")),
    _column("memory_full_info.uss", "Memory (uss) [bytes]", _of("job_memory_uss_bytes")),
    _column("memory_full_info.pss", "Memory (pss) [bytes]", _of("job_memory_pss_bytes")),
    _column("memory_full_info.swap", "Memory (swap) [bytes]", _of("job_memory_swap_bytes")),
    _fraction(
        "memory_percent",
        "Memory usage [%]",
        Computed(
            series=("job_memory_rss_bytes", "host_memory_total_bytes"), compute=lambda part, whole: 100 * part / whole
        ),
    ),
    *(
        ViewColumn(
            path=("memory_bw",),
            header="Memory (read) bandwidth [MiB/s]",
            quantity=Growth(
                series=(series(EVENTS, group=group, event=event),),
                clock=PERF_CLOCK,
                times=_LINE_BYTES,
                per_second=True,
            ),
            table_times=1 / MIB,
            is_whole=False,
        )
        for group, event in zip(("memory_server", "memory_client"), _READS, strict=True)
    ),
    _column("io_counters.read_count", "IO read count", _of("job_io_reads_total")),
    _column("io_counters.write_count", "IO write count", _of("job_io_writes_total")),
    _column("io_counters.read_bytes", "IO read data [bytes]", _of("job_storage_read_bytes_total")),
    _column("io_counters.write_bytes", "IO written data [bytes]", _of("job_storage_written_bytes_total")),
    _column("num_threads", "Number of threads", _of("job_threads")),
    _column("num_fds", "Number of file descriptors", _of("job_file_descriptors")),
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


def cpu_columns(at: Instants) -> Iterator[ViewColumn]:
    """Yield the columns of ``cpu_metrics`` for one place, with the zones of energy that it has."""
    yield from CPU
    for name in at.host:
        if metric_name(name) == _RAPL:
            # perfmon names core-0, uncore-0 and dram-0; other zones keep their names.
            zone = _INSIDE.sub(r"\2-\1", labels_of(name).get("zone", ""))
            yield ViewColumn(
                path=("rapl_powercap", zone),
                header=f"RAPL {zone.replace('-', ' ')} [uJ]",
                quantity=Counted(metric=name, times=1e6),
            )


def gpu_columns(gpu: str) -> tuple[ViewColumn, ...]:
    """Return the columns of ``nv_gpu_metrics`` for one GPU, by its number."""

    def of(metric: str, *, times: float = 1.0, **labels: str) -> Computed:
        return _of(series(metric, gpu=gpu, **labels), times=times)

    share = functools.partial(of, times=100)

    def violation(policy: str) -> str:
        return series("gpu_violation_seconds_total", gpu=gpu, policy=policy)

    def ecc(kind: str) -> Computed:
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
        _fraction("utilization_rates.gpu", "GPU utilization [%]", share("gpu_utilization_ratio")),
        _fraction("utilization_rates.memory", "GPU memory utilization [%]", share("gpu_memory_utilization_ratio")),
        _fraction("encoder_util", "Encoder utilization [%]", share("gpu_encoder_utilization_ratio")),
        _fraction("decoder_util", "Decoder utilization [%]", share("gpu_decoder_utilization_ratio")),
        _column("power_usage", "Power usage [mW]", of("gpu_power_watts", times=1000)),
        _column(
            "violation",
            "Clock violation, power and thermal [ns]",
            _of(violation("power"), violation("thermal"), times=1e9),
        ),
        _fraction("temperature", "GPU temperature [C]", of("gpu_temperature_celsius")),
        _fraction("fan_speed", "Fan speed [%]", share("gpu_fan_speed_ratio")),
        _column("num_procs", "Number of compute processes", of("gpu_processes", type="compute")),
        _column("pci_thgpt.send", "PCIe sent [KB/s]", of("gpu_pcie_transmit_bytes_per_second", times=1e-3)),
        _column("pci_thgpt.recv", "PCIe recv [KB/s]", of("gpu_pcie_receive_bytes_per_second", times=1e-3)),
        _column("job_num_procs", "Number of processes of the job", of("job_gpu_processes")),
        _column("job_memory_used", "GPU memory used by the job [bytes]", of("job_gpu_memory_bytes")),
        _fraction("job_utilization", "GPU utilization by the job [%]", share("job_gpu_sm_ratio")),
    )  # fmt: skip


def _flops(precision: str) -> str:
    return series("perf_flops_per_second", precision=precision)


def _vectors(precision: str) -> str:
    return series("perf_vectorization_ratio", precision=precision)


DERIVED: tuple[tuple[str, str, str, str, float], ...] = (
    ("hardware_events", "derv_ipc", "derv_ipc", "perf_instructions_per_cycle", 1.0),
    ("hardware_events", "derv_branch_miss_ratio", "derv_branch_miss_ratio", "perf_branch_miss_ratio", 1.0),
    ("hardware_events", "derv_cache_miss_ratio", "derv_cache_miss_ratio", "perf_cache_miss_ratio", 1.0),
    ("software_events", "derv_cpus_utilized", "derv_cpus_utilized", "perf_cpus_utilized", 1.0),
    ("L2", "derv_l2_bandwidth", "derv_l2_bandwidth [MB/s]", "perf_l2_bandwidth_bytes_per_second", 1e-6),
    ("L2cache", "derv_l2_request_rate", "derv_l2_request_rate", "perf_l2_requests_per_instruction", 1.0),
    ("L2cache", "derv_l2_miss_rate", "derv_l2_miss_rate", "perf_l2_misses_per_instruction", 1.0),
    ("L2cache", "derv_l2_miss_ratio", "derv_l2_miss_ratio", "perf_l2_miss_ratio", 1.0),
    ("L3", "derv_l3_bandwidth", "derv_l3_bandwidth [MB/s]", "perf_l3_bandwidth_bytes_per_second", 1e-6),
    ("L3cache", "derv_l3_request_rate", "derv_l3_request_rate", "perf_l3_requests_per_instruction", 1.0),
    ("L3cache", "derv_l3_miss_rate", "derv_l3_miss_rate", "perf_l3_misses_per_instruction", 1.0),
    ("L3cache", "derv_l3_miss_ratio", "derv_l3_miss_ratio", "perf_l3_miss_ratio", 1.0),
    ("FLOPS_SP", "derv_flops_sp", "derv_flops_sp [MFLOP/s]", _flops("single"), 1e-6),
    ("FLOPS_SP", "derv_vectorization_sp", "derv_vectorization_sp", _vectors("single"), 1.0),
    ("FLOPS_DP", "derv_flops_dp", "derv_flops_dp [MFLOP/s]", _flops("double"), 1e-6),
    ("FLOPS_DP", "derv_vectorization_dp", "derv_vectorization_dp", _vectors("double"), 1.0),
    ("FLOPS_any", "derv_flops_any", "derv_flops_any [MFLOP/s]", _flops("any"), 1e-6),
)
"""Group, key, header, our series and factor of derived values."""


def perf_columns(at: Instants, *, is_of_job: bool) -> Sequence[ViewColumn]:
    """Return the events of a place's job, or of the machine where there is no job, by group, and derived values."""
    columns = [
        ViewColumn(
            path=(group, event),
            header=event,
            quantity=Growth(series=(name,), clock=PERF_CLOCK, is_of_job=is_of_job),
        )
        for (group, event), name in _events(at.job if is_of_job else at.host).items()
    ]
    columns += [
        ViewColumn(
            path=(group, key),
            header=header,
            quantity=Computed(series=(name,), times=times, is_of_job=is_of_job),
            is_whole=False,
        )
        for group, key, header, name, times in DERIVED
    ]
    order = list(dict.fromkeys([*GROUPS.values(), *(column.path[0] for column in columns)]))
    return sorted(columns, key=lambda column: order.index(column.path[0]))


def _told_apart(sections: Sequence[ViewSection]) -> list[ViewSection]:
    """Name the group in the headers of events that several groups count."""
    paths = {column.path for section in sections for column in section.columns}
    shared = {event for event, count in Counter(event for _, event in paths).items() if count > 1}
    return [
        msgspec.structs.replace(section, columns=tuple(
            msgspec.structs.replace(column, header=f"{column.header} ({column.path[0]})")
            if column.path[1] in shared else column for column in section.columns))
        for section in sections
    ]  # fmt: skip


def _events(names: Iterable[str]) -> dict[tuple[str, str], str]:
    """Return the series of each event by perfmon's group; a group that perfmon did not have keeps our name."""
    found: dict[tuple[str, str], str] = {}
    for name in names:
        if metric_name(name) == EVENTS:
            labels = labels_of(name)
            group = labels.get("group", "")
            # Where two of our groups are one of perfmon's, an event of both is told once.
            found.setdefault((GROUPS.get(group, group), labels.get("event", "")), name)
    return found


def _write(
    path: Path, names: Sequence[str], places: Sequence[Place], interval_s: float | None, hosts: Iterable[dict[str, Any]]
) -> Path:
    """Write a file that appears when it is complete, host by host, and return its path; its folder is made.

    At the top are ``host_names``, ``sampling_frequency``, which is the period in seconds, and ``labels``, then an
    object for each host.
    """
    keys = _keys(names)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new, storage_errors(path), new.open("wb") as file:
        file.write(msgspec.json.encode(_top(keys, places, interval_s))[:-1])
        for key, host in zip(keys, hosts, strict=True):
            file.write(b",\n" + msgspec.json.encode(key) + b": " + msgspec.json.encode(host))
        file.write(b"\n}\n")
    return path


def _keys(names: Sequence[str]) -> list[str]:
    """Return a key for each host; one that is taken, by the top or by another host, gets the suffix ``~2``."""
    keys = list(_TOP)
    for name in names:
        candidates = itertools.chain([name], (f"{name}~{number}" for number in itertools.count(2)))
        keys.append(next(key for key in candidates if key not in keys))
    return keys[len(_TOP) :]


def _top(keys: Sequence[str], places: Sequence[Place], interval_s: float | None) -> dict[str, Any]:
    labels: dict[str, str] = {}
    for place in places:
        labels |= {name: value for name, value in place.host.labels.items() if value}
    jobs = [place.job for place in places if place.job is not None]
    asked = [told_number(place.host.tool, "interval_s") for place in places]
    period_s = next((each for each in (*asked, interval_s) if each is not None), None)
    return {
        "host_names": list(keys),
        "sampling_frequency": period_s if period_s is None or period_s % 1 else int(period_s),
        "labels": ({"job_id": jobs[0]} if jobs else {}) | labels,
    }


def _known(place: Place) -> dict[str, Any]:
    """Return the facts about a machine, its job and the tool."""
    return {
        "hardware": place.host.hardware,
        "job": place.host.jobs.get(place.job or "", {}),
        "capabilities": place.host.capabilities,
        "tool": place.host.tool,
    }


def _host(section: ViewSection, at: Instants) -> dict[str, Any]:
    """Return the object of a host: its columns by their keys, each as JSON already, which takes the least memory."""
    tree: dict[str, Any] = {
        SECONDS: msgspec.Raw(msgspec.json.encode(np.floor(at.t).astype(np.int64).tolist())),
        EXACT: msgspec.Raw(msgspec.json.encode(np.round(at.t, 6).tolist())),
    }
    for column, values in section.read(at):
        branch = tree
        for name in column.path[:-1]:
            branch = branch.setdefault(name, {})
        branch[column.path[-1]] = msgspec.Raw(msgspec.json.encode(_listed(values, is_whole=column.is_whole)))
    return tree


def _listed(values: NDArray[Any], *, is_whole: bool) -> list[Any]:
    if is_whole:
        return [None if value != value else int(value) for value in np.round(values).tolist()]  # noqa: PLR0124
    listed: list[Any] = np.round(values, 6).tolist()  # JSON has null for NaN
    return listed
