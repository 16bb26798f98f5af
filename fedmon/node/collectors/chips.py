"""The sensors that the chips under ``/sys/class/hwmon`` have, and how they are called."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from fedmon.node.collectors.base import CollectorUnavailableError
from fedmon.node.collectors.sysfs import entries, read_text


class Sensor(NamedTuple):
    """One sensor of a chip; ``fault`` is the file that holds 1 while it is broken, where the chip has one."""

    chip: str
    label: str
    path: Path
    fault: Path | None


class Chips:
    """Lists the sensors of one kind of all chips.

    A chip is called by its name; chips of one name, such as those of two sockets, are told apart by their device. A
    chip keeps what it was called as long as it is there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._called: dict[tuple[str, str], str] = {}

    def folders(self) -> list[str]:
        """Return the names of the chips' folders; none where they cannot be listed."""
        try:
            return entries(self.folder)
        except CollectorUnavailableError:
            return []

    def sensors(self, kind: str) -> list[Sensor]:
        """Return the sensors that have a file such as ``temp1_input``, for the kind ``temp``.

        Raises CollectorUnavailableError when the chips cannot be listed.
        """
        return [
            sensor
            for entry, chip in self._names().items()
            for sensor in _sensors_of(self.folder / entry, chip, kind) or _sensors_of(self._device(entry), chip, kind)
        ]

    def _names(self) -> dict[str, str]:
        """Map each chip's folder to what it is called."""
        names = {entry: _text(self.folder / entry / "name") or entry for entry in entries(self.folder)}
        self._called = {key: called for key, called in self._called.items() if names.get(key[0]) == key[1]}
        taken = Counter([*names.values(), *self._called.values()])
        for entry, name in names.items():
            if (entry, name) not in self._called:
                device = self._device(entry)
                behind = device.resolve().name if device.exists() else entry
                called = name if taken[name] == 1 else f"{name}-{behind}"
                self._called[entry, name] = called if called not in self._called.values() else f"{called}-{entry}"
        return {entry: self._called[entry, name] for entry, name in names.items()}

    def _device(self, entry: str) -> Path:
        """Return the folder of the chip's device, in which old drivers have their sensors."""
        return self.folder / entry / "device"


def _sensors_of(folder: Path, chip: str, kind: str) -> list[Sensor]:
    try:
        names = entries(folder, rf"{kind}\d+_(input|fault)")
    except CollectorUnavailableError:
        return []  # a chip that was pulled out meanwhile, or one without a device
    found = [name.removesuffix("_input") for name in names if name.endswith("_input")]
    labels = {sensor: _text(folder / f"{sensor}_label") or sensor for sensor in found}
    taken = Counter(labels.values())
    return [
        Sensor(
            chip=chip,
            label=label if taken[label] == 1 or label == sensor else f"{label} {sensor}",
            path=folder / f"{sensor}_input",
            fault=folder / f"{sensor}_fault" if f"{sensor}_fault" in names else None,
        )
        for sensor, label in labels.items()
    ]


def _text(path: Path) -> str:
    """Return a file's text; nothing where it cannot be read, since a name has a substitute."""
    try:
        return read_text(path)
    except CollectorUnavailableError:
        return ""
