"""Which power and energy sensors the chips of the kernel's hwmon framework have."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fedmon.node.collectors.energy.device_file import text_of

MAX_SENSORS = 128
"""Sensors beyond this number are left out, so that one sample always fits into a message."""

SYSTEM_METER = "power_meter"
"""The chip that measures the whole machine. Source: Linux Documentation/hwmon/acpi_power_meter.rst."""

_SENSOR = re.compile(r"(power|energy)(\d+)_(input|average)")
_OF_A_DEVICE = re.compile(
    r"amdgpu|radeon|nouveau|nvidia|i915|xe|nvme|drivetemp|mlx\d.*|iwlwifi.*|ucsi.*|BAT.*|AC.*|hid.*", re.IGNORECASE
)


class Sensor(msgspec.Struct, frozen=True, kw_only=True):
    """One sensor: the file that holds microwatts or microjoules, and the labels under which it is reported."""

    path: Path
    chip: str
    name: str
    driver: str
    counts_energy: bool

    @property
    def full_name(self) -> str:
        """The text that names it in the settings."""
        return f"{self.chip}/{self.name}"


def find_sensors(sys: Path) -> list[Sensor]:
    """Return every power and energy sensor of every chip.

    A power sensor that has both is read as ``powerN_input``, else as ``powerN_average``.
    Source: Linux Documentation/hwmon/sysfs-interface.rst, sections "Power" and "Energy".
    """
    chips = list(_chips(sys / "class" / "hwmon"))
    drivers = [driver for _, _, driver in chips]
    found: list[Sensor] = []
    taken: set[str] = set()
    for folder, place, driver in chips:
        chip = driver if drivers.count(driver) == 1 else _with_address(driver, folder)
        chip = chip if chip not in taken else f"{chip}-{folder.name}"
        taken.add(chip)
        found += _of_chip(place, chip, driver)
    return found[:MAX_SENSORS]


def of_the_machine(sensors: list[Sensor], named: tuple[str, ...]) -> tuple[list[Sensor], str | None]:
    """Choose the sensors that together measure the whole machine, else say why none can be chosen.

    ``named`` is what the owner says. Without it, it is the one meter of the system, or the only power sensor that does
    not belong to one device such as a GPU or a disk.
    """
    if named:
        chosen = [sensor for sensor in sensors if sensor.full_name in named]
        missing = sorted(set(named) - {sensor.full_name for sensor in chosen})
        return ([], f"sensor {missing[0]} of [energy] node_power_sensors is not there") if missing else (chosen, None)
    power = [sensor for sensor in sensors if not sensor.counts_energy and not _OF_A_DEVICE.fullmatch(sensor.driver)]
    meters = [sensor for sensor in power if sensor.driver == SYSTEM_METER] or power
    if len(meters) == 1:
        return meters, None
    if not meters:
        return [], "no power sensor measures the whole machine"
    names = ", ".join(sensor.full_name for sensor in meters[:8])
    return [], f"several power sensors ({names}); name those that add up to the machine: [energy] node_power_sensors"


def _chips(hwmon: Path) -> Iterator[tuple[Path, Path, str]]:
    """Yield each chip that has such sensors: its folder, the folder of its files, and the name of its driver."""
    try:
        names = os.listdir(hwmon)  # noqa: PTH208 - the names alone
    except OSError:
        return
    for folder in (hwmon / name for name in sorted(names, key=lambda name: (len(name), name))):
        # Older drivers keep their files in the device's folder, not in that of the chip.
        for place in (folder, folder / "device"):
            if _files(place):
                yield folder, place, text_of(place / "name") or text_of(folder / "name") or folder.name
                break


def _files(folder: Path) -> dict[tuple[str, int], str]:
    """Map kind and number of each sensor to the name of its file."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - the names alone
    except OSError:
        return {}
    matches = [match for name in names if (match := _SENSOR.fullmatch(name))]
    # "input" sorts after "average" and so replaces it.
    return {(match[1], int(match[2])): match[0] for match in matches}


def _of_chip(folder: Path, chip: str, driver: str) -> Iterator[Sensor]:
    files = _files(folder)
    labels = {key: text_of(folder / f"{key[0]}{key[1]}_label") for key in files}
    for key in sorted(files):
        label = labels[key]
        is_alone = list(labels.values()).count(label) == 1
        yield Sensor(
            path=folder / files[key],
            chip=chip,
            name=label if label and is_alone else f"{key[0]}{key[1]}",
            driver=driver,
            counts_energy=key[0] == "energy",
        )


def _with_address(driver: str, folder: Path) -> str:
    """Tell chips of one driver apart by the address of their device, which is the same after each start."""
    try:
        return f"{driver}-{(folder / 'device').readlink().name}"
    except OSError:
        return f"{driver}-{folder.name}"
