"""The tables of nodes, of their hardware, and of the jobs on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedmon.common.metrics.table import MISSING
from fedmon.report.amounts import duration, moment, number, percent, size
from fedmon.report.document.model import Table, shown
from fedmon.report.findings.case import Case, Node
from fedmon.report.findings.completeness import gap_share, main_stream
from fedmon.report.findings.cpu import BUSY, cpu_use
from fedmon.report.findings.energy import NODE_JOULES, job_joules
from fedmon.report.findings.gpu import gpu_uses
from fedmon.report.findings.memory import memory_use
from fedmon.report.findings.traffic import network_bytes, storage_bytes
from fedmon.report.findings.waiting import mode_share
from fedmon.report.source import JOB

_MOST_ROWS = 200


def node_table(case: Case) -> Table:
    """Return one row for each node, with the columns of which some node knows something."""
    columns = _COLUMNS_OF_A_JOB if case.job is not None else _COLUMNS
    cells = {title: [ask(case, node) for node in case.nodes[:_MOST_ROWS]] for title, ask in columns.items()}
    kept = [title for title, texts in cells.items() if any(text != MISSING for text in texts)]
    rows = [(shown(node.name, 60), *(cells[title][at] for title in kept))
            for at, node in enumerate(case.nodes[:_MOST_ROWS])]  # fmt: skip
    return Table(headers=("Node", *kept), rows=tuple(rows), numeric=frozenset(range(1, len(kept) + 1)))


def _cpus_busy(_case: Case, node: Node) -> str:
    use = cpu_use(node)
    return f"{number(use.busy)} of {number(use.cpus)}" if use is not None else MISSING


def _efficiency(_case: Case, node: Node) -> str:
    use = cpu_use(node)
    return percent(use.ratio) if use is not None else MISSING


def _peak(_case: Case, node: Node) -> str:
    use = memory_use(node)
    if use is None:
        return MISSING
    return size(use.peak) + (f" of {size(use.limit)}" if use.limit else "")


def _machine_busy(_case: Case, node: Node) -> str:
    total = node.one(BUSY)
    return percent(total.mean) if total is not None else MISSING


def _machine_memory(_case: Case, node: Node) -> str:
    total, left = node.one("host_memory_total_bytes"), node.one("host_memory_available_bytes")
    return f"{size(total.last - left.low)} of {size(total.last)}" if total is not None and left is not None else MISSING


def _gpus(_case: Case, node: Node) -> str:
    uses = gpu_uses(node)
    return f"{percent(sum(use.mean for use in uses) / len(uses))} of {len(uses)}" if uses else MISSING


def _wait(_case: Case, node: Node) -> str:
    share = mode_share(node, "iowait")
    return percent(share) if share is not None else MISSING


def _pair(pair: tuple[float, float] | None) -> str:
    return f"{size(pair[0])} / {size(pair[1])}" if pair is not None else MISSING


def _energy(case: Case, node: Node) -> str:
    joules = job_joules(node) if case.job is not None else None
    if case.job is None and (total := node.one(NODE_JOULES)) is not None and total.grown_s > 0:
        joules = total.increase
    return f"{number(joules / 3600)} Wh" if joules is not None else MISSING


def _samples(case: Case, node: Node) -> str:
    stream = main_stream(case, node)
    return f"{stream.samples}" if stream is not None else "0"


def _gaps(case: Case, node: Node) -> str:
    stream = main_stream(case, node)
    if stream is None or (not stream.hole_count and not stream.missing):
        return MISSING
    return f"{duration(stream.hole_seconds)} ({percent(gap_share(stream))})"


Ask = Callable[[Case, Node], str]
_COMMON: Mapping[str, Ask] = {
    "GPUs busy": _gpus,
    "I/O wait": _wait,
    "Network in / out": lambda _case, node: _pair(network_bytes(node)),
}
_ENDING: Mapping[str, Ask] = {"Energy": _energy, "Samples": _samples, "Gaps": _gaps}
_COLUMNS_OF_A_JOB: Mapping[str, Ask] = {
    "CPUs busy": _cpus_busy,
    "CPU efficiency": _efficiency,
    "Peak memory": _peak,
    **_COMMON,
    "Storage read / written": lambda _case, node: _pair(storage_bytes(node, of_job=True)),
    **_ENDING,
}
_COLUMNS: Mapping[str, Ask] = {
    "CPUs busy": _machine_busy,
    "Peak memory": _machine_memory,
    **_COMMON,
    "Disks read / written": lambda _case, node: _pair(storage_bytes(node, of_job=False)),
    **_ENDING,
}


def job_table(case: Case) -> Table:
    """Return one row for each job of each node of a recording that is about nodes."""
    rows: list[tuple[str, ...]] = []
    for node in case.nodes:
        keys = dict.fromkeys([*node.host.jobs, *(name.removeprefix(JOB) for name in node.streams if JOB in name[:4])])
        for key in keys:
            total, told = node.streams.get(f"{JOB}{key}"), node.host.jobs.get(key, {})
            peak = total.series.get("job_memory_peak_bytes") if total is not None else None
            seconds = [total.series[name].increase for name in ("job_cpu_user_seconds_total",
                       "job_cpu_system_seconds_total") if total is not None and name in total.series]  # fmt: skip
            rows.append(
                (
                    shown(key, 60),
                    shown(node.name, 60),
                    shown(told.get("name"), 40),
                    shown(told.get("user"), 30),
                    moment(total.first_t) if total is not None else MISSING,
                    duration(total.elapsed_s) if total is not None else MISSING,
                    duration(sum(one or 0.0 for one in seconds)) if seconds else MISSING,
                    size(peak.high) if peak is not None else MISSING,
                )
            )
    headers = ("Job", "Node", "Name", "User", "First sample", "Seen for", "CPU time", "Peak memory")
    return Table(headers=headers, rows=tuple(rows[:_MOST_ROWS]), numeric=frozenset({5, 6, 7}))


def hardware_table(case: Case) -> Table:
    """Return what the nodes are made of, one row for those that are alike."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for node in case.nodes:
        alike.setdefault(_hardware(node.host.hardware), []).append(shown(node.name, 60))
    rows = tuple((_names(names), *parts) for parts, names in alike.items())
    headers = ("Nodes", "Processors", "Memory", "GPUs", "Network", "Disks", "System")
    return Table(headers=headers, rows=rows)


def _names(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _hardware(told: Mapping[str, Any]) -> tuple[str, ...]:
    if not told:
        return ("not recorded", *[MISSING] * 5)
    counts = [f"{told[name]} {word if told[name] != 1 else word[:-1]}" for name, word in
              (("sockets", "sockets"), ("cores", "cores"), ("threads", "threads")) if told.get(name)]  # fmt: skip
    processor = ", ".join([str(told.get("model") or told.get("architecture") or "unknown"), *counts])
    if told.get("microarchitecture"):
        processor += f" ({told['microarchitecture']})"
    numa = told.get("numa")
    memory = _size(told.get("memory_bytes")) + (
        f" in {len(numa)} NUMA nodes" if isinstance(numa, list) and len(numa) > 1 else ""
    )
    swap = told.get("swap_bytes")
    memory += f", swap {_size(swap)}" if swap else ", no swap" if swap == 0 else ""
    system = [told.get("os"), told.get("kernel"), told.get("virtualisation")]
    ports = [f"{one.get('device')} {', '.join(one.get('rates') or [])}".strip() for one in _list(told, "infiniband")]
    links = [f"{one.get('interface')} {_speed(one.get('speed_bytes_per_second'))}".strip()
             for one in _list(told, "network")]  # fmt: skip
    return tuple(
        shown(text, 240)
        for text in (
            processor,
            memory,
            _gpu_models(told),
            ", ".join([*links, *ports]),
            ", ".join(f"{one.get('device')} {_size(one.get('size_bytes'))}" for one in _list(told, "disks")),
            ", ".join(str(one) for one in system if one) + (", simulated" if told.get("simulated") else ""),
        )
    )


def _gpu_models(told: Mapping[str, Any]) -> str:
    if told.get("gpus") is None:
        return "unknown"
    models: dict[str, int] = {}
    for gpu in _list(told, "gpus"):
        text = f"{gpu.get('model') or 'GPU'} {_size(gpu.get('memory_bytes'))}".removesuffix(f" {MISSING}")
        models[text] = models.get(text, 0) + 1
    return ", ".join(f"{amount} x {model}" for model, amount in models.items()) or "none"


def _list(told: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = told.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _size(value: object) -> str:
    return size(float(value)) if isinstance(value, int | float) else MISSING


def _speed(value: object) -> str:
    return f"{number(float(value) * 8 / 1e9)} Gbit/s" if isinstance(value, int | float) and value else ""
