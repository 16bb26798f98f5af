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
    Scope.PERF: "Events of perf",
    Scope.JOB: "One job",
    Scope.USER: "Values that programs report",
    Scope.AGENT: "Cost of watching",
}

_BEFORE = """\
# Metrics

Made from `fedmon/common/metrics/table.py` by `python -m tests.docs.metrics_page docs/metrics.md`;
edit its rows in `fedmon/common/metrics/tables/`, not this page.

A node reads all metrics that are due at one instant, every 5 s unless its owner or a researcher's lease sets another
interval. It publishes them on `general/monitoring/<node_id>` in batches (see [topics](topics.md)). In a batch a metric
with labels is one series for each instance, such as `host_disk_read_bytes_total{device="sda"}`. `fedmon node probe`
lists the metrics of a machine with source and period, and the reasons of missing ones.

## How often

- With each sample: CPU, memory, load, pressure, disks, network, uptime, traffic of InfiniBand ports.
- Every 10 s at most: file systems, temperatures and fans, frequencies, NUMA, context switches, paging, state and
  errors of InfiniBand ports.
- Every 60 s at most: the hardware.

Metrics that cost more than microseconds, or hardly change, are read less often. Samples in between have `null` without
a reason: the metric was not due. `fedmon node probe` shows the period of each metric.

## Values and missing values

- A *gauge* is a state. A *counter* only grows until the machine or the node restarts; it travels as read, and the
  reader divides the difference of two values by the difference of their `mono` times. Counters
  of the node itself "since its start" (energy, perf) restart at 0 when its owner changes `per_core`, `plugins` or a
  root of `[metrics]`, or any key of `[energy]`, `[perf]` and `[plugins]`. Another interval changes nothing.
- Units are base units: bytes, seconds, ratios from 0 to 1.
- Metrics that the machine lacks are absent, and the answer to `monitor status` has the reason. A missed reading is
  `null`, with the reason in `reasons` of its batch. A `null` without a reason was not due, or its device was absent. A
  value is never invented: no 0, no -1, no repeated value.
- A malformed file, a truncated number, and an impossible one (negative counters, 5,000 degrees) count as missed
  readings of their series; all others continue.
- The series of a removed device are absent; a removed sensor or energy counter is `null` with the reason `not found`.
  The reasons in the answer to `monitor status` follow devices that come and go.
- The settings `proc_root`, `sys_root` and `cgroup_root`, or options of `fedmon node probe`, can replace `/proc` and
  `/sys` by a tree of files. The description of the hardware then says `simulated`, and so does the label of
  `host_hardware_info`. This machine's own file systems, GPUs and perf are never mixed into it.
- A reason begins with one of: `unsupported`, `no permission`, `not found`, `failed`, `first sample`.
"""

_AFTER = """\
## Left out on purpose

- File systems: only local ones are asked for their space, because a dead NFS server blocks forever. The others are
  named in the capability report. Pseudo file systems, images (squashfs, ISO), container layers, second mounts of one
  device and memory file systems other than `/tmp` and `/dev/shm` are not listed. The node notices a change of the
  mounts within 10 s. At most 64 are listed.
- Disks: partitions, loop, RAM, floppy and optical devices are not listed. Volumes, arrays and caches (`dm-0`, `md0`,
  `bcache0`, `drbd0`, `zd0`) are listed only if their disks are not, since their disks count the same traffic. At most
  64 are.
- Interfaces: those with a device, such as network cards, and partitions of IPoIB are listed. If there are none, as in a
  container, all others but loopback are; bonds, bridges, VLANs, tunnels and ends of containers (`bond0`, `docker0`,
  `wg-site`, `veth1a2b` and the like) only if nothing else is left. At most 64 are listed.
- Single CPUs are measured only with the setting `per_core`: modes up to 64 CPUs, busy shares and frequencies up to 512.
- Thermal zones are used if no hwmon chip has a temperature, since they repeat the same sensors. If chips have the
  same name, the name of their device is added: `coretemp-coretemp.1`.
- A port without a link has no traffic: its counters are `null` and the reason names its state; its errors are read.
  If the kernel has only the old counters of 32 bits, the capability report says so; a full one stops, and is then
  `null`.
- The machine's host name, serial numbers, addresses and users are not read.
- The agent's CPU time is that of the node's process without its children.

## Systems without /proc

There psutil reads CPU, memory, load, file systems, disks, network and uptime, and if the system offers them,
temperatures, frequencies and swapping. Other metrics are absent with the reason `unsupported`; pressure, NUMA,
InfiniBand and the description of the hardware are Linux only.
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
