"""The table of perfmon's columns as its page shows it; prints it when it is run."""

from __future__ import annotations

from collections.abc import Iterator

from fedmon.common.metrics.series import metric_name
from fedmon.report.views.perfmon import CPU, DERIVED, GROUPS, gpu_columns
from fedmon.report.views.view_table import Computed, Counted, Growth, ViewQuantity

HEAD = "| JSON | table | made of |\n|---|---|---|\n"
_ZONES = ("package-N", "core-N", "uncore-N", "dram-N")


def made_of(quantity: ViewQuantity) -> list[str]:
    """Name the metrics that a quantity follows from."""
    match quantity:
        case Counted(metric=metric):
            return [metric]
        case Computed(series=names) | Growth(series=names):
            return list(dict.fromkeys(map(metric_name, names)))
    raise TypeError(f"{quantity!r} is a kind that this page does not know")


def cpu_rows() -> str:
    """Return the table of the group cpu_metrics."""
    rows = {column.path: _row(".".join(column.path), column.header, made_of(column.quantity)) for column in CPU}
    zones = (
        _row(f"rapl_powercap.{zone}", f"RAPL {zone.replace('-', ' ')} [uJ]", ["rapl_energy_joules_total"])
        for zone in _ZONES
    )
    return HEAD + "".join([*rows.values(), *zones])


def gpu_rows() -> str:
    """Return the table of the group nv_gpu_metrics."""
    return HEAD + "".join(_row(".".join(one.path), one.header, made_of(one.quantity)) for one in gpu_columns("N"))


def perf_rows() -> str:
    """Return the table of the group perf_metrics."""
    return HEAD + "".join(_perf_rows())


def _perf_rows() -> Iterator[str]:
    for group in dict.fromkeys(GROUPS.values()):
        ours = ", ".join(f"`{name}`" for name, theirs in GROUPS.items() if theirs == group)
        yield f"| `{group}.EVENT` | `EVENT` | `perf_events_total` of {ours}, growth in the interval |\n"
        for _, key, header, name, _ in (one for one in DERIVED if one[0] == group):
            yield _row(f"{group}.{key}", header, [name])


def _row(key: str, header: str, metrics: list[str]) -> str:
    return f"| `{key}` | `{header}` | {', '.join(f'`{metric}`' for metric in metrics)} |\n"


if __name__ == "__main__":
    print(cpu_rows(), perf_rows(), gpu_rows(), sep="\n")
