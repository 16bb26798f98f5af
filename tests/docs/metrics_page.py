"""The page of ``docs/metrics.md``, made from the table: ``python -m tests.docs.metrics_page docs/metrics.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from fedmon.common.metrics.table import METRICS, Metric, Scope

_TITLES = {
    Scope.HOST: "The machine",
    Scope.INFINIBAND: "InfiniBand and RDMA ports",
    Scope.RAPL: "Energy counters of processors",
    Scope.HWMON: "Power sensors",
    Scope.NODE: "Energy of the machine",
    Scope.GPU: "NVIDIA GPUs",
    Scope.PERF: "Events that perf counts",
    Scope.JOB: "One job",
    Scope.USER: "Values that programs report",
    Scope.AGENT: "What watching costs",
}

_BEFORE = """\
# Metrics

Made from `fedmon/common/metrics/table.py` by `python -m tests.docs.metrics_page docs/metrics.md`;
edit its rows in `fedmon/common/metrics/tables/`, not this page.

A node reads all that is due at one instant, every 5 s unless its owner or a researcher's lease says otherwise, and
publishes it on `general/monitoring/<node_id>` in batches (see [topics](topics.md)). In a batch a metric with labels
is written as one series for each instance, such as `host_disk_read_bytes_total{device="sda"}`. `fedmon node probe`
shows what of this a machine measures, from which source, how often, and why it does not measure the rest.

## How often

- With each sample: CPU, memory, load, pressure, disks, network, uptime, traffic of InfiniBand ports.
- Every 10 s at most: file systems, temperatures and fans, frequencies, NUMA, context switches, paging, state and
  errors of InfiniBand ports.
- Every 60 s at most: what the machine is made of.

What costs more than microseconds, or hardly changes, is read less often. Samples in between have `null` for it and no
reason: it was not due. `fedmon node probe` says it of each metric.

## What a value means, and what it means that there is none

- A *gauge* is a state. A *counter* only grows until the machine or the node restarts; it travels as read, and the
  reader divides the difference of two values by the difference of their `mono` times. Where the node itself counts
  "since its start" (energy, perf), it begins again at 0 when its owner changes what is measured: `per_core`, `plugins`
  or a root of `[metrics]`, or anything of `[energy]`, `[perf]` and `[plugins]`; another pace changes nothing.
- Units are base units: bytes, seconds, ratios from 0 to 1.
- What this machine cannot measure is absent, and the answer to `monitor status` says why. A reading that was missed
  is `null`, with the reason in `reasons` of its batch; a `null` of a series that has no reason there was not due, or
  its device was not there. A value is never invented: no 0, no -1, no repeated value.
- A file that holds something else than the kernel writes, a number that may be cut off, and one that is impossible
  (negative counters, 5,000 degrees) count as missed readings of the series they belong to; all others go on.
- A device that is pulled out is told once, as `null` with the reason `not found`; then its series are absent.
- Where a tree of files stands in for `/proc` and `/sys`, by the settings `proc_root`, `sys_root` and `cgroup_root` or
  by options of `fedmon node probe`, the description of the hardware says `simulated`, and so does the label of
  `host_hardware_info`. This machine's own file systems, GPUs and perf are never mixed into it.
- A reason begins with one of: `unsupported`, `no permission`, `not found`, `failed`, `first sample`.
"""

_AFTER = """\
## What is left out on purpose

- File systems: only local ones are asked for their space, since asking a dead NFS server blocks for ever; the others
  are named in the capability report. Pseudo file systems, images (squashfs, ISO), container layers, second mounts of
  one device and memory file systems other than `/tmp` and `/dev/shm` are not listed. A change of the mounts is
  noticed within 10 s. At most 64 are listed.
- Disks: partitions, loop, RAM, floppy and optical devices are not listed. At most 64 are.
- Interfaces: those that only carry traffic inside the machine (loopback, container and virtual machine ends, bridges
  of Docker and libvirt) are not listed. At most 64 are.
- Single CPUs are measured only with the setting `per_core`: modes up to 64 CPUs, busy shares and frequencies up to 512.
- Thermal zones stand in where no hwmon chip has a temperature, since they repeat the same sensors. At most 256 sensors
  are read. Where chips have the same name, the name of their device is added: `coretemp-coretemp.1`.
- A port without a link has no traffic: its counters are `null` and the reason names its state; its errors are read.
  Where the kernel has only the old counters of 32 bits, the capability report says so; one that is full stands still,
  and is `null` then. At most 32 ports are read.
- The machine's host name, serial numbers, addresses and users are not read.
- The agent's CPU time is that of the node's process without its children.

## Systems without /proc

There psutil reads CPU, memory, load, file systems, disks, network, uptime, and as far as the system tells them
temperatures, frequencies and swapping. What psutil does not tell is absent with the reason `unsupported`; pressure,
NUMA, InfiniBand and the description of the hardware are Linux only.
"""


def page() -> str:
    """Return the page as Markdown."""
    measured = {metric.scope for metric in METRICS.values()}
    tables = [f"## {title}\n\n{_table(scope)}" for scope, title in _TITLES.items() if scope in measured]
    return "\n".join((_BEFORE, *tables, _AFTER))


def _table(scope: Scope) -> str:
    rows = ["| name | kind | unit | labels | meaning | source on Linux |", "|---|---|---|---|---|---|"]
    rows += [_row(metric) for metric in METRICS.values() if metric.scope is scope]
    return "\n".join(rows) + "\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return (
        f"| `{metric.name}` | {metric.kind.value} | {metric.unit.value} | {labels} | {metric.help} | {metric.source} |"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
