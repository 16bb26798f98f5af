"""The page of ``docs/metrics.md``, made from the table: ``python -m fedmon.common.metrics.page docs/metrics.md``."""

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

Made from `fedmon/common/metrics/table.py` by `python -m fedmon.common.metrics.page docs/metrics.md`;
edit its rows in `fedmon/common/metrics/tables/`, not this page.

A node reads all of these at one instant, every 5 s unless its owner or a researcher's lease says otherwise, and
publishes them on `general/monitoring/<node_id>` in batches (see [topics](topics.md)). In a batch a metric with labels
is written as one series for each instance, such as `host_disk_read_bytes_total{device="sda"}`.

- A *gauge* is a state. A *counter* only grows until the machine or the node restarts; it travels as read, and the
  reader divides the difference of two values by the difference of their `mono` times.
- Units are base units: bytes, seconds, ratios from 0 to 1.
- What this machine cannot measure is absent, and the answer to `monitor status` says why. A reading that was missed
  once is `null`, with the reason in `reasons` of its batch. A value is never invented: no 0, no -1, no repeated value.
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
- The agent's CPU time is that of the node's process without its children.

## Systems without /proc

There psutil reads the same metrics. CPU modes, buffers, caches and busy times that the system does not tell are absent
with the reason `unsupported`.
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
