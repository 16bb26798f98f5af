"""Traffic of disks and networks, their errors, and file systems that ran full."""

from __future__ import annotations

from typing import NamedTuple

from fedmon.common.text import joined, percent, size
from fedmon.report.amounts import size_rate
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Finding, Node, Severity, past, summed, unknown

NETWORK = ("host_network_receive_bytes_total", "host_network_transmit_bytes_total")
FABRIC = ("infiniband_receive_bytes_total", "infiniband_transmit_bytes_total")
STORAGE_OF_JOB = ("job_storage_read_bytes_total", "job_storage_written_bytes_total")
STORAGE_OF_HOST = ("host_disk_read_bytes_total", "host_disk_written_bytes_total")
_LOOPBACK = "lo"


class Moved(NamedTuple):
    """Bytes in and out, and both together a second, each over the time of its readings."""

    into: float
    out: float
    per_second: float


def moved(node: Node, metrics: tuple[str, str]) -> Moved | None:
    """Return the growth of two counters of bytes, without those of a machine to itself; None if unknown."""
    found = [[total for labels, total in node.all(metric) if labels.get("interface") != _LOOPBACK]
             for metric in metrics]  # fmt: skip
    into, out = map(summed, found)
    if into is None or out is None:
        return None
    return Moved(into, out, sum(total.per_second or 0.0 for totals in found for total in totals))


def volumes(case: Case) -> Finding | None:
    """Report the data read, written, received and sent."""
    of_job = case.job is not None
    machine = "machines" if sum(not node.counted_by for node in case.nodes) > 1 else "machine"
    storage = STORAGE_OF_JOB if of_job else STORAGE_OF_HOST
    parts: list[str] = []
    figures: dict[str, float | None] = {}
    for name, metrics, words in (
        ("storage", storage, f"{'The job' if of_job else f'The {machine}'} read {{}} from storage and wrote {{}}"),
        ("network", NETWORK, "The {nodes} received {} by network and sent {}"),
        ("infiniband", FABRIC, "InfiniBand ports received {} and sent {}"),
    ):
        figures[f"{name}_in_bytes"] = figures[f"{name}_out_bytes"] = None
        found = [one for node in case.nodes if (one := moved(node, metrics)) is not None]
        if not found:
            continue
        into, out, per_second = map(sum, zip(*found, strict=True))
        figures[f"{name}_in_bytes"], figures[f"{name}_out_bytes"] = into, out
        if name == "storage" or into or out:  # a machine that spoke to itself alone is not worth a sentence
            told = words.format(size(into), size(out), nodes="nodes" if len(found) > 1 else "node")
            parts.append(f"{told} ({size_rate(per_second)} together)")
    if not parts:
        return unknown(case.nodes, "volumes", "Storage and network", (STORAGE_OF_JOB if of_job else NETWORK)[0])
    return Finding(
        name="volumes",
        severity=Severity.NOTE,
        title="Storage and network",
        text=f"{'. '.join(parts)}.",
        how="growth of the kernel's counters; network and InfiniBand are those of the whole machines, without"
        " traffic to themselves",
        figures=figures,
        nodes=tuple(node.name for node in case.nodes),
    )


def full_file_systems(case: Case) -> Finding | None:
    """Report file systems that nearly ran full."""
    used: dict[str, float] = {}
    for node in case.nodes:
        for labels, total in node.all("host_filesystem_size_bytes"):
            place = labels.get("mountpoint", "")
            left = node.one("host_filesystem_available_bytes", mountpoint=place)
            if left is not None and total.last > 0:
                used[f"{place or '?'} of {node.name}"] = 1 - left.low / total.last
    full = past(used, limits.FILESYSTEM_FULL)
    if not full:
        return None
    return Finding(
        name="file-systems-full",
        severity=Severity.WARNING,
        title="File systems nearly full",
        text=f"{joined([f'{place} {percent(ratio)} full' for place, ratio in full.items()])}.",
        how="size less the smallest available space",
        advice="Make room: programs that cannot write lose their results.",
        figures={"ratio": max(full.values())},
        nodes=tuple(full),
    )
