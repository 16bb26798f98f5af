"""The catalogue of charts, one for each family of the metric table and the exceptions, with units."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Mapping

import msgspec

from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS, Kind, Metric, Scope, Unit, is_counter
from fedmon.report.training import COSTS, ROWS, STEP

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Quantity(enum.Enum):
    """The quantity of an axis, which decides its unit and scale."""

    BYTES = "bytes"
    BYTE_RATE = "bytes per second"
    SHARE = "percent"
    CPUS = "CPUs"
    COUNT = "count"
    RATE = "per second"
    SECONDS = "seconds"
    HERTZ = "hertz"
    CELSIUS = "degrees"
    WATTS = "watts"
    GRAM_RATE = "grams per hour"
    JOULES = "joules"
    NUMBER = "number"


FLOATING = (Quantity.CELSIUS, Quantity.HERTZ, Quantity.NUMBER)
"""Quantities whose axis need not begin at 0."""
_GAUGES = {
    Unit.RATIO: Quantity.SHARE,
    Unit.BYTES: Quantity.BYTES,
    Unit.SECONDS: Quantity.SECONDS,
    Unit.COUNT: Quantity.COUNT,
    Unit.HERTZ: Quantity.HERTZ,
    Unit.CELSIUS: Quantity.CELSIUS,
    Unit.WATTS: Quantity.WATTS,
    Unit.BYTES_PER_SECOND: Quantity.BYTE_RATE,
    Unit.PER_SECOND: Quantity.RATE,
    Unit.JOULES: Quantity.JOULES,
}
_COUNTERS = {
    Unit.BYTES: Quantity.BYTE_RATE,
    Unit.SECONDS: Quantity.SHARE,
    Unit.COUNT: Quantity.RATE,
    Unit.JOULES: Quantity.WATTS,
    Unit.GRAMS: Quantity.GRAM_RATE,
}


def _ladder(units: Iterable[str], base: float, first: float = 1.0) -> tuple[tuple[str, float, float], ...]:
    return tuple((unit, first * base**at, first * base**at) for at, unit in enumerate(units))


_UNITS = {
    Quantity.BYTES: _ladder(_BINARY, 1024.0),
    Quantity.BYTE_RATE: _ladder([f"{unit}/s" for unit in _BINARY], 1024.0),
    Quantity.WATTS: _ladder(("mW", "W", "kW", "MW"), 1000.0, 1e-3),
    Quantity.JOULES: _ladder(("J", "kJ", "MJ", "GJ"), 1000.0),
    Quantity.HERTZ: _ladder(("Hz", "kHz", "MHz", "GHz"), 1000.0),
    Quantity.GRAM_RATE: _ladder(("mg/h", "g/h", "kg/h"), 1000.0, 1 / 3.6e6),
    Quantity.SECONDS: (("µs", 0.0, 1e-6), ("ms", 1e-3, 1e-3), ("s", 1.0, 1.0), ("min", 120.0, 60.0),
                       ("h", 7200.0, 3600.0), ("d", 172_800.0, 86_400.0)),
    Quantity.SHARE: (("%", 0.0, 0.01),),
    Quantity.CELSIUS: (("°C", 0.0, 1.0),),
    Quantity.CPUS: (("CPUs", 0.0, 1.0),),
    Quantity.RATE: (("per second", 0.0, 1.0),),
}  # fmt: skip
"""Units from the smallest on, the smallest value for their use, and their size."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """A unit: a value of the recording times ``factor`` is a number in ``unit``."""

    unit: str
    factor: float


def quantity_of(metric: Metric) -> Quantity:
    """Return the quantity of a metric on an axis; of a counter, its growth per second."""
    table = _COUNTERS if metric.kind is Kind.COUNTER else _GAUGES
    return table.get(metric.unit, Quantity.NUMBER)


def scale_of(quantity: Quantity, largest: float) -> Scale:
    """Return the unit in which values up to ``largest`` are short numbers."""
    units = _UNITS.get(quantity, (("", 0.0, 1.0),))
    unit, _, size = next((one for one in reversed(units) if abs(largest) >= one[1]), units[0])
    return Scale(unit=unit, factor=1 / size)


class Group(enum.Enum):
    """Groups of charts, in the order of reading; the value is the word of the command line."""

    JOB = "job"
    USER = "user"
    CPU = "cpu"
    MEMORY = "memory"
    SYSTEM = "system"
    DISK = "disk"
    NETWORK = "network"
    INFINIBAND = "infiniband"
    ENERGY = "energy"
    GPU = "gpu"
    PERF = "perf"
    PRESSURE = "pressure"
    FILESYSTEM = "filesystem"
    NUMA = "numa"
    SENSORS = "sensors"
    AGENT = "agent"
    OTHER = "other"


class Join(enum.Enum):
    """How several lines become one; the value is the word in the title."""

    TOTAL = "total"
    AVERAGE = "average"
    HIGHEST = "highest"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a chart, for any nodes and devices.

    ``lines`` maps metrics to their labels; ``limits`` are metrics drawn as a limit of them. ``each`` is a label; each
    of its values gets a separate chart. ``is_stack`` says that the lines are parts of one whole.
    """

    name: str
    group: Group
    title: str
    lines: Mapping[str, str]
    limits: Mapping[str, str] = {}
    quantity: Quantity
    within: Join
    over: Join
    each: str = ""
    without: tuple[str, ...] = ()
    is_stack: bool = False


DEVICES = frozenset({"device", "interface", "mountpoint", "cpu", "gpu", "node", "port", "chip", "sensor", "mig", "link",
                     "uuid", "collector", "stream", "job"})  # fmt: skip
"""Labels that tell devices apart; the values of all others, such as a CPU mode, are separate lines."""

NOT_SHOWN: Mapping[str, str] = {
    **{name: "a description, not a quantity" for name, metric in METRICS.items() if metric.kind is Kind.INFO},
    "host_cpu_core_seconds_total": "eight lines a core; the busy share of each core is shown",
    "host_uptime_seconds": "grows by a second a second",
    "host_pressure_ratio": "the pressure of the last 10 s; that of each interval is shown",
    "host_threads_runnable": "the kernel's other count of threads that run or wait is shown",
    "node_energy_kilowatt_hours_total": "the energy in joules is shown, as power",
    "job_energy_kilowatt_hours_total": "the energy in joules is shown, as power",
    "job_cpus_busy": "the CPU time of the job is shown, by mode",
    "job_cpu_busy_ratio": "the CPU time of the job is shown, by mode",
    "job_memory_peak_bytes": "the highest point of the job's memory",
    "perf_counted_seconds_total": "grows by a second a second: the clock of perf's counts",
    "user_scenario_finished": "a moment, not a quantity",
    STEP: "the axis of values that programs report",
    ROWS: "the weight of a node in the mean of a training",
    **dict.fromkeys(COSTS, "shown by round, below the learning curves"),
}
"""Metrics of the table without a chart, and why."""

TROUBLE = frozenset({"errors", "dropped", "discards", "overruns", "recoveries", "downed", "waits", "misses", "foreign",
                      "other", "replays", "kills", "throttled", "violation", "missed", "expired", "retired",
                      "remapped"})  # fmt: skip
_WORDS = {
    "cpu": "CPU", "gpu": "GPU", "numa": "NUMA", "io": "I/O", "oom": "out-of-memory", "ecc": "ECC", "pcie": "PCIe",
    "nvlink": "NVLink", "mig": "instances", "bar1": "BAR1", "sm": "multiprocessors", "rss": "resident", "l2": "level 2",
    "l3": "level 3", "flops": "floating point operations", "context": "context", "major": "with reading a disk",
}  # fmt: skip
"""Common words for parts of metric names."""
_AVERAGED = (Quantity.SHARE, Quantity.HERTZ, Quantity.SECONDS, Quantity.NUMBER)
_GROUPS = {
    Scope.JOB: Group.JOB, Scope.USER: Group.USER, Scope.GPU: Group.GPU, Scope.RAPL: Group.ENERGY,
    Scope.HWMON: Group.ENERGY, Scope.NODE: Group.ENERGY, Scope.INFINIBAND: Group.INFINIBAND, Scope.PERF: Group.PERF,
    Scope.AGENT: Group.AGENT,
}  # fmt: skip
_SUBJECTS = {
    "cpu": Group.CPU, "load": Group.CPU, "memory": Group.MEMORY, "swap": Group.MEMORY, "page": Group.MEMORY,
    "oom": Group.MEMORY, "disk": Group.DISK, "network": Group.NETWORK, "pressure": Group.PRESSURE,
    "filesystem": Group.FILESYSTEM, "numa": Group.NUMA, "temperature": Group.SENSORS, "fan": Group.SENSORS,
}  # fmt: skip
_TITLES = {Scope.JOB: "Job: {}", Scope.GPU: "GPU: {}", Scope.INFINIBAND: "InfiniBand: {}", Scope.PERF: "perf: {}",
           Scope.AGENT: "The tool: {}", Scope.HWMON: "Sensors: {}", Scope.NODE: "Machine: {}"}  # fmt: skip

_FAMILIES: Mapping[str, tuple[str, str]] = {
    "host_disk_byte_rate": ("disk_traffic", "Disk traffic"),
    "host_disk_rate": ("disk_operations", "Disk operations"),
    "host_disk_share": ("disk_busy", "Time in which disks were busy"),
    "host_network_byte_rate": ("network_traffic", "Network traffic"),
    "host_network_rate": ("network_packets", "Network packets"),
    "host_network_rate_trouble": ("network_errors", "Network errors"),
    "host_swap_byte_rate": ("swap_traffic", "Swapping"),
    "host_context_rate": ("context_switches", "Context switches"),
    "host_threads_count": ("threads", "Threads"),
    "host_pressure_share": ("pressure", "Pressure: time in which threads waited"),
    "host_temperature_celsius": ("temperature", "Temperature"),
    "job_io_byte_rate": ("job_io", "Job: read and written by calls"),
    "job_storage_byte_rate": ("job_storage", "Job: read from and written to storage"),
    "job_pressure_share": ("job_pressure", "Job: time in which its tasks waited"),
    "job_energy_watts": ("job_power", "Job: its share of the power"),
    "job_emissions_gram_rate": ("job_emissions", "Job: its share of the CO2 equivalent"),
    "job_file_count": ("job_files", "Job: open files, pipes and sockets"),
    "node_energy_watts": ("power", "Power of the machine"),
    "node_emissions_gram_rate": ("emissions", "CO2 equivalent"),
    "rapl_energy_watts": ("rapl_power", "RAPL power"),
    "gpu_utilization_share": ("gpu_load", "GPU load"),
    "gpu_memory_bytes": ("gpu_memory", "GPU memory"),
    "gpu_power_watts": ("gpu_power", "GPU power"),
    "gpu_energy_watts": ("gpu_energy", "GPU power, from its energy counter"),
    "infiniband_byte_rate": ("infiniband_traffic", "InfiniBand traffic"),
}
"""Name and title of families whose derived title is not idiomatic."""


def _exception(name: str, group: Group, title: str, lines: str, limits: str = "", **more: object) -> Figure:
    """Make a figure of ``metric=label`` words; an underscore in a label stands for a space."""

    def parsed(text: str) -> dict[str, str]:
        pairs = (word.partition("=") for word in text.split())
        return {metric: label.replace("_", " ") for metric, _, label in pairs}

    metrics = parsed(lines)
    quantity = more.get("quantity", quantity_of(METRICS[next(iter(metrics))]))
    join = Join.AVERAGE if quantity in _AVERAGED else Join.TOTAL
    given = {"quantity": quantity, "within": join, "over": join} | more
    return Figure(name=name, group=group, title=title, lines=metrics, limits=parsed(limits), **given)  # type: ignore[arg-type]  # its fields, as given


EXCEPTIONS: tuple[Figure, ...] = (
    _exception("reported", Group.USER, "Reported", "user_value=", each="name"),
    _exception("job_cpu", Group.JOB, "Job: CPUs used",
               "job_cpu_user_seconds_total=user_mode job_cpu_system_seconds_total=kernel",
               quantity=Quantity.CPUS, is_stack=True),
    _exception("job_memory", Group.JOB, "Job: memory",
               "job_memory_charged_bytes=charged job_memory_rss_bytes=resident", "job_memory_limit_bytes=limit"),
    _exception("job_memory_kinds", Group.JOB, "Job: memory by kind",
               "job_memory_anon_bytes=anonymous job_memory_cache_bytes=file_cache job_memory_swap_bytes=swapped_out",
               is_stack=True),
    _exception("job_memory_parts", Group.JOB, "Job: memory shared with others",
               "job_memory_pss_bytes=proportional job_memory_uss_bytes=its_own job_memory_shared_bytes=shared"),
    _exception("job_address_space", Group.JOB, "Job: address space", "job_memory_vms_bytes=address_space"),
    _exception("job_processes", Group.JOB, "Job: processes and threads",
               "job_processes=processes job_threads=threads job_tasks=tasks job_zombies=zombies"
               , "job_tasks_limit=limit"),
    _exception("job_throttled", Group.JOB, "Job: time in which a limit kept it from CPUs",
               "job_cpu_throttled_seconds_total=throttled", quantity=Quantity.CPUS),
    _exception("cpu_time", Group.CPU, "CPUs by mode", "host_cpu_seconds_total=", "host_cpu_count=CPUs",
               quantity=Quantity.CPUS, is_stack=True, without=("idle",)),
    _exception("cpu_load", Group.CPU, "CPU load", "host_cpu_busy_ratio=busy"),
    _exception("cpu_cores", Group.CPU, "CPU load of each core", "host_cpu_core_busy_ratio="),
    _exception("cpu_frequency", Group.CPU, "CPU frequency",
               "host_cpu_frequency_hertz=mean host_cpu_frequency_min_hertz=slowest_core"
               " host_cpu_frequency_max_hertz=fastest_core"),
    _exception("cpu_core_frequency", Group.CPU, "Frequency of each core", "host_cpu_core_frequency_hertz="),
    _exception("load", Group.CPU, "Load: threads that run or wait",
               "host_load1=1_min host_load5=5_min host_load15=15_min", "host_cpu_count=CPUs"),
    _exception("memory", Group.MEMORY, "Memory by kind",
               "host_memory_used_bytes=used host_memory_cached_bytes=cached host_memory_buffers_bytes=buffers",
               "host_memory_total_bytes=all", is_stack=True),
    _exception("memory_left", Group.MEMORY, "Memory that is left",
               "host_memory_available_bytes=available host_memory_free_bytes=free"),
    _exception("memory_kernel", Group.MEMORY, "Memory of the kernel",
               "host_memory_slab_bytes=slab host_memory_dirty_bytes=dirty host_memory_shared_bytes=shared"),
    _exception("swap", Group.MEMORY, "Swap space", "host_swap_used_bytes=used", "host_swap_total_bytes=all"),
    _exception("filesystems", Group.FILESYSTEM, "File system space",
               "host_filesystem_available_bytes=available host_filesystem_free_bytes=free",
               "host_filesystem_size_bytes=size", each="mountpoint"),
    _exception("instructions_per_cycle", Group.PERF, "Instructions per cycle", "perf_instructions_per_cycle=",
               quantity=Quantity.NUMBER),
    _exception("perf_cpus", Group.PERF, "CPUs that perf saw busy",
               "perf_cpus_utilized=busy perf_task_clock_seconds_total=by_the_task_clock", quantity=Quantity.CPUS),
    _exception("cache_per_instruction", Group.PERF, "Cache requests and misses per instruction",
               "perf_l2_requests_per_instruction=level_2_requests perf_l2_misses_per_instruction=level_2_misses"
               " perf_l3_requests_per_instruction=level_3_requests perf_l3_misses_per_instruction=level_3_misses",
               quantity=Quantity.NUMBER),
    _exception("misses", Group.PERF, "Share of branches and cache requests that missed",
               "perf_branch_miss_ratio=branches perf_cache_miss_ratio=last_level perf_l2_miss_ratio=level_2"
               " perf_l3_miss_ratio=level_3"),
    _exception("perf_events", Group.PERF, "Events counted", "perf_events_total=", each="group"),
)  # fmt: skip
"""Figures that do not follow from the table: several units, parts of a whole, or another way to join."""

FIRST_OF_JOB = ("job_cpu", "job_memory", "gpu_load", "gpu_memory", "job_storage", "job_pressure", "network_traffic",
                "job_memory_kinds", "cpu_time", "job_power", "job_processes", "memory", "pressure",
                "infiniband_traffic", "disk_traffic")  # fmt: skip
FIRST_OF_NODES = ("cpu_time", "cpu_load", "memory", "disk_traffic", "network_traffic", "gpu_load", "gpu_memory",
                  "pressure", "power", "load", "infiniband_traffic", "temperature", "filesystems",
                  "context_switches", "disk_busy")  # fmt: skip
"""Figures that are shown first, in this order."""
ONE_LINE_A_NODE = frozenset({"cpu_load", "gpu_load", "job_memory"})
"""Figures that are first shown per node, not combined."""


def is_shown(series: str) -> bool:
    """Tell whether charts need a series: each that is not deliberately left out."""
    name = metric_name(series)
    return name not in NOT_SHOWN or name in (STEP, ROWS, *COSTS)


def figures(metrics: Iterable[str]) -> list[Figure]:
    """Return the figures of metrics, including those of plug-ins, in the order of reading."""
    chosen = set(metrics) - set(NOT_SHOWN)
    found = [figure for figure in (*EXCEPTIONS, *_families()) if chosen & figure.lines.keys()]
    for name in sorted(chosen - METRICS.keys()):
        quantity = Quantity.RATE if is_counter(name) else Quantity.NUMBER
        found.append(Figure(name=f"other_{name}", group=Group.OTHER, title=name, lines={name: name}, quantity=quantity,
                            within=Join.AVERAGE, over=Join.AVERAGE))  # fmt: skip
    order = list(Group)
    return sorted(found, key=lambda figure: order.index(figure.group))


@functools.cache
def _families() -> tuple[Figure, ...]:
    listed = {metric for figure in EXCEPTIONS for metric in (*figure.lines, *figure.limits)}
    families: dict[str, dict[str, Metric]] = {}
    for name, metric in METRICS.items():
        if name not in listed and name not in NOT_SHOWN:
            families.setdefault(_key(metric), {})[name] = metric
    return tuple(_family(key, of_key) for key, of_key in families.items())


def _key(metric: Metric) -> str:
    words = _words(metric)
    subject = words[0] if words and metric.scope is not Scope.INFINIBAND else ""
    trouble = "trouble" if TROUBLE & set(words) else ""
    quantity = quantity_of(metric).name.lower()
    return "_".join(filter(None, (metric.scope.value, subject, quantity, trouble)))


def _words(metric: Metric) -> list[str]:
    """Return the words of a metric between its scope and its unit."""
    return metric.name.removesuffix("_total").removesuffix(f"_{metric.unit.value}").split("_")[1:]


def _family(key: str, metrics: Mapping[str, Metric]) -> Figure:
    first = next(iter(metrics.values()))
    subject = "" if first.scope is Scope.INFINIBAND else next(iter(_words(first)), "")
    labels = {name: _label(metric, subject) for name, metric in metrics.items()}
    lines = {name: label for name, label in labels.items() if not _is_limit(metrics[name])} or labels
    if any(label.endswith("used") for label in lines.values()):
        lines = {name: label for name, label in lines.items() if not label.endswith("free")}
    is_cpu_time = subject == "cpu" and quantity_of(first) is Quantity.SHARE and first.kind is Kind.COUNTER
    quantity = Quantity.CPUS if is_cpu_time else quantity_of(first)
    if len(lines) == 1:
        what = _spoken(_words(metrics[next(iter(lines))]))
        lines = dict.fromkeys(lines, "")
    elif key.endswith("trouble"):
        what = f"{_spoken([subject])} errors and the like".strip()
    else:
        listed = list(lines.values()) if len(lines) <= 3 else [quantity.value]
        what = f"{_spoken([subject])}: {', '.join(listed)}".removeprefix(": ")
    title = _TITLES.get(first.scope, "{}").format(what)
    name, title = _FAMILIES.get(key, (key, title[:1].upper() + title[1:]))
    join = Join.HIGHEST if quantity is Quantity.CELSIUS else Join.AVERAGE if quantity in _AVERAGED else Join.TOTAL
    return Figure(
        name=name,
        group=_GROUPS.get(first.scope) or _SUBJECTS.get(subject, Group.SYSTEM),
        title=title,
        lines=lines,
        quantity=quantity,
        within=join,
        over=Join.AVERAGE if join is Join.HIGHEST else join,
    )


def _label(metric: Metric, subject: str) -> str:
    words = _words(metric)
    label = _spoken(words[1:] if words[:1] == [subject] else words) or _spoken(words)
    return label.replace("receive", "received").replace("transmit", "sent")


def _spoken(words: Iterable[str]) -> str:
    return " ".join(_WORDS.get(word, word) for word in words)


def _is_limit(metric: Metric) -> bool:
    return metric.kind is Kind.GAUGE and bool({"limit", "max", "rate", "size", "total"} & set(_words(metric)))
