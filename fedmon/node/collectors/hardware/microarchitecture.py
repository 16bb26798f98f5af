"""The micro-architecture of a CPU, guessed from what it can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmon.node.collectors.base import Why

_ON_A_VM = (
    "guessed from the CPU's features; this is a virtual machine, which may hide some of them, so the guess may be "
    "an older one than the processor is"
)
_GUESSED = "guessed from the CPU's features"


def microarchitecture(
    block: Mapping[str, str], architecture: str | None, reasons: dict[str, str], notes: dict[str, str]
) -> str | None:
    """Return the newest micro-architecture whose features the first CPU of ``cpuinfo`` has; its name is archspec's.

    None where none is known, with a reason; what to think of the guess goes into the notes.
    """
    if architecture not in ("x86_64", "aarch64"):
        reasons["microarchitecture"] = f"{Why.UNSUPPORTED.value}: no names are known for {architecture or 'this'} CPUs"
        return None
    features = set(block.get("flags" if architecture == "x86_64" else "Features", "").split())
    if not features:
        reasons["microarchitecture"] = f"{Why.NOT_FOUND.value}: cpuinfo does not tell the CPU's features"
        return None
    # archspec takes 30 ms and 3 MB to load, and only this needs it; its tables are files of their own.
    try:
        from archspec.cpu import TARGETS
        from archspec.cpu.schema import TARGETS_JSON

        root = TARGETS[architecture]
    except (ImportError, OSError, KeyError) as error:
        reasons["microarchitecture"] = f"{Why.FAILED.value}: archspec cannot be used: {error}"
        return None
    vendor = block.get("vendor_id", "generic")
    if architecture == "aarch64":
        vendor = TARGETS_JSON["conversions"]["arm_vendors"].get(block.get("CPU implementer", ""), "generic")
    elif "pni" in features:
        features.add("sse3")  # Linux calls it by its older name
    fitting = [
        target
        for target in TARGETS.values()
        if (target == root or root in target.ancestors)
        and target.vendor in (vendor, "generic")
        and target.features <= features
    ]
    part = block.get("CPU part", "")
    fitting = [target for target in fitting if part and target.cpu_part == part] or fitting or [root]
    # A maker's name is right only where the CPU can do all that the newest level without a maker's name can.
    level = max((target for target in fitting if target.vendor == "generic"), key=_newness, default=root)
    makers = [target for target in fitting if target.vendor != "generic" and (target > level or part)]
    notes["microarchitecture"] = _ON_A_VM if "hypervisor" in features else _GUESSED
    return str(max(makers or [level], key=_newness).name)


def _newness(target: Any) -> tuple[int, int]:
    return len(target.ancestors), len(target.features)
