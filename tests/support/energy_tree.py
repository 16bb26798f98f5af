"""Trees of files laid out like /sys and /proc of machines that count energy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Roots
from tests.support.machine_tree import write_tree

RANGE_UJ = 262_143_328_850
HERTZ = os.sysconf("SC_CLK_TCK")


def at(mono: float, *, t: float = 1_700_000_000.0) -> Instant:
    return Instant(t=t + mono, mono=mono)


class EnergyTree:
    """A machine under ``root``; zones and sensors are written and changed by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sys, self.proc = root / "sys", root / "proc"
        self.roots = Roots(proc=self.proc, sys=self.sys, cgroup=self.sys / "fs" / "cgroup")
        self.powercap = self.sys / "class" / "powercap"
        self.busy(0.0)

    def zone(self, folder: str, name: str, energy_uj: int | str, *, range_uj: int | str | None = RANGE_UJ) -> Path:
        files = {"name": name, "energy_uj": energy_uj}
        if range_uj is not None:
            files["max_energy_range_uj"] = range_uj
        return _written(self.powercap / folder, files)

    def shows(self, folder: str, energy_uj: int | str) -> None:
        (self.powercap / folder / "energy_uj").write_text(f"{energy_uj}\n")

    def chip(self, number: int, name: str, **files: int | str) -> Path:
        return _written(self.sys / f"class/hwmon/hwmon{number}", {"name": name, **files})

    def busy(self, seconds: float) -> None:
        _written(self.proc, {"stat": f"cpu  {round(seconds * HERTZ)} 0 0 99999 77 0 0 55 0 0"})


def _written(folder: Path, files: Mapping[str, int | str]) -> Path:
    return write_tree(folder, {name: f"{value}\n" for name, value in files.items()})
