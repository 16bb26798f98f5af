"""Traffic of disks and networks, their errors, and file systems that ran full."""

from __future__ import annotations

from fedmon.common.text import joined, percent, size
from fedmon.report.amounts import size_rate
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Finding, Node, Severity, summed, unknown

NETWORK = _RECEIVED, _SENT = "host_network_receive_bytes_total", "host_network_transmit_bytes_total"
FABRIC = ("infiniband_receive_bytes_total", "infiniband_transmit_bytes_total")
STORAGE_OF_JOB = ("job_storage_read_bytes_total", "job_storage_written_bytes_total")
STORAGE_OF_HOST = ("host_disk_read_bytes_total", "host_disk_written_bytes_total")
_LOOPBACK = "lo"


def network_bytes(node: Node) -> tuple[float, float] | None:
    """Return the bytes that a machine received and sent, without those to itself; None if unknown."""
    received, sent = (
        summed(total for labels, total in node.all(metric) if labels.get("interface") != _LOOPBACK)
        for metric in NETWORK
    )
    return None if received is None or sent is None else (received, sent)


def fabric_bytes(node: Node) -> tuple[float, float] | None:
    """Return the bytes that the InfiniBand ports of a machine received and sent; None if it has none."""
    received, sent = (summed(total for _, total in node.all(metric)) for metric in FABRIC)
    return None if received is None or sent is None else (received, sent)


def storage_bytes(node: Node, *, of_job: bool) -> tuple[float, float] | None:
    """Return the bytes read from and written to storage, by the job or by the machine; None if unknown."""
    read, written = STORAGE_OF_JOB if of_job else STORAGE_OF_HOST
    amounts = summed(total for _, total in node.all(read)), summed(total for _, total in node.all(written))
    return None if amounts[0] is None or amounts[1] is None else (amounts[0], amounts[1])


def _rate(case: Case, name: str, *, of_job: bool) -> float | None:
    """Return the bytes a second of all nodes, each over the time of its readings; None without any."""
    metrics = {
        "storage": STORAGE_OF_JOB if of_job else STORAGE_OF_HOST,
        "network": NETWORK,
        "infiniband": FABRIC,
    }[name]
    found = [
        total.per_second
        for node in case.nodes
        for metric in metrics
        for labels, total in node.all(metric)
        if total.per_second is not None and (name != "network" or labels.get("interface") != _LOOPBACK)
    ]
    return sum(found) if found else None


def volumes(case: Case) -> Finding | None:
    """Report the data read, written, received and sent."""
    of_job = case.job is not None
    storage = [both for node in case.nodes if (both := storage_bytes(node, of_job=of_job)) is not None]
    network = [both for node in case.nodes if (both := network_bytes(node)) is not None]
    fabric = [both for node in case.nodes if (both := fabric_bytes(node)) is not None]
    who = "The job" if of_job else "The machines" if len(case.nodes) > 1 else "The machine"
    parts: list[str] = []
    figures: dict[str, float | None] = {}
    for name, pairs, words in (
        ("storage", storage, f"{who} read {{}} from storage and wrote {{}}"),
        ("network", network, ("Its" if of_job and len(network) < 2 else "The") + " nodes received {} by network and"
         " sent {}" if len(network) > 1 else "The node received {} by network and sent {}"),
        ("infiniband", fabric, "InfiniBand ports received {} and sent {}"),
    ):  # fmt: skip
        figures[f"{name}_in_bytes"] = figures[f"{name}_out_bytes"] = None
        if not pairs:
            continue
        into, out = (sum(pair[at] for pair in pairs) for at in (0, 1))
        figures[f"{name}_in_bytes"], figures[f"{name}_out_bytes"] = into, out
        if name != "storage" and not into and not out:
            continue  # such as a machine that spoke to itself alone
        together = _rate(case, name, of_job=of_job)
        rate = f" ({size_rate(together)} together)" if together is not None else ""
        parts.append(words.format(size(into), size(out)) + rate)
    if not parts:
        return unknown(case.nodes, "volumes", "Storage and network", STORAGE_OF_JOB[0] if of_job else _RECEIVED)
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
    full: dict[str, float] = {}
    for node in case.nodes:
        for labels, total in node.all("host_filesystem_size_bytes"):
            left = node.one("host_filesystem_available_bytes", mountpoint=labels.get("mountpoint", ""))
            if left is not None and total.last > 0 and 1 - left.low / total.last >= limits.FILESYSTEM_FULL:
                full[f"{labels.get('mountpoint', '?')} of {node.name}"] = 1 - left.low / total.last
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
