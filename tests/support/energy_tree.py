"""Trees of files laid out like /sys and /proc of machines that count energy."""

from __future__ import annotations

import os
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Roots

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
        path = self.powercap / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / "name").write_text(f"{name}\n")
        (path / "energy_uj").write_text(f"{energy_uj}\n")
        if range_uj is not None:
            (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
        return path

    def shows(self, folder: str, energy_uj: int | str) -> None:
        (self.powercap / folder / "energy_uj").write_text(f"{energy_uj}\n")

    def chip(self, number: int, name: str, **files: int | str) -> Path:
        path = self.sys / "class" / "hwmon" / f"hwmon{number}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "name").write_text(f"{name}\n")
        for file, value in files.items():
            (path / file).write_text(f"{value}\n")
        return path

    def busy(self, seconds: float) -> None:
        self.proc.mkdir(parents=True, exist_ok=True)
        (self.proc / "stat").write_text(f"cpu  {round(seconds * HERTZ)} 0 0 99999 77 0 0 55 0 0\n")
