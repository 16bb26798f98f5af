"""What the machine is made of: one document, made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import THIS_MACHINE, Lane, Reading, Roots
from fedmon.node.collectors.hardware.description import Hardware
from fedmon.node.collectors.hardware.devices import adapters, disks, interfaces, memory_nodes, swap_and_memory
from fedmon.node.collectors.hardware.processors import processors
from fedmon.node.collectors.hardware.system import system

__all__ = ["Hardware", "HardwareCollector", "describe", "hardware"]

INFO = "host_hardware_info"
INFO_LABELS = (
    "simulated",
    "vendor",
    "model",
    "microarchitecture",
    "sockets",
    "cores",
    "threads",
    "kernel",
    "virtualisation",
)


def describe(roots: Roots, *, gpus: Sequence[Mapping[str, Any]] | None = None) -> Hardware:
    """Describe the machine whose files lie under ``roots``; takes milliseconds, so do it once.

    ``gpus`` describes each GPU, as who reads them found it; None when nobody looked. Raises nothing: what is
    unknown is None and named in ``reasons``.
    """
    found: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    notes: dict[str, str] = {}
    for part in processors, swap_and_memory, memory_nodes, disks, interfaces, adapters, system:
        part(roots, found, reasons, notes)
    if gpus is None:
        reasons["gpus"] = "not found: nobody looked for GPUs"
    return Hardware(**found, gpus=None if gpus is None else [dict(gpu) for gpu in gpus], reasons=reasons, notes=notes)


def hardware(roots: Roots = THIS_MACHINE, *, gpus: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Describe a machine as a document that a message can carry."""
    document: dict[str, Any] = msgspec.to_builtins(describe(roots, gpus=gpus))
    return document


class HardwareCollector:
    """Gives the description as the labels of one series, whose value is 1; an empty label is unknown."""

    name = "hardware"
    lane = Lane.SLOW

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._key = ""

    def collect(self, _now: Instant) -> Reading:
        """Give the description that was made at the first reading."""
        if not self._key:
            found = describe(self._roots)
            self._key = series(INFO, **{label: _text(getattr(found, label)) for label in INFO_LABELS})
        return Reading({self._key: 1})

    def probe(self) -> dict[str, str | None]:
        """Say that there is always a description."""
        return {INFO: None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
