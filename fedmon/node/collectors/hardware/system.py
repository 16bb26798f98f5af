"""Operating system, kernel, Python, and whether the machine is a virtual one."""

from __future__ import annotations

import platform
from typing import Any

from fedmon.node.collectors.base import CollectorUnavailableError, Roots, Why
from fedmon.node.collectors.hardware.processors import cpuinfo
from fedmon.node.collectors.sysfs import read_text

_HYPERVISORS = {
    "amazon ec2": "amazon",
    "bochs": "bochs",
    "google": "google",
    "innotek": "virtualbox",
    "kvm": "kvm",
    "microsoft": "hyper-v",
    "openstack": "kvm",
    "parallels": "parallels",
    "qemu": "qemu",
    "virtualbox": "virtualbox",
    "vmware": "vmware",
    "xen": "xen",
}


def system(roots: Roots, found: dict[str, Any], reasons: dict[str, str], _notes: dict[str, str]) -> None:
    """Describe the system that runs on the machine; Python is always the one that asks."""
    found["simulated"] = roots.simulated
    found["python"] = f"{platform.python_implementation()} {platform.python_version()}"
    try:
        found["kernel"] = read_text(roots.proc / "sys" / "kernel" / "osrelease")
    except CollectorUnavailableError as error:
        found["kernel"], reasons["kernel"] = None, error.reason
    found["os"] = None
    if roots.simulated:
        reasons["os"] = f"{Why.UNSUPPORTED.value}: trees that stand in for a machine do not tell its distribution"
    else:
        try:
            found["os"] = platform.freedesktop_os_release().get("PRETTY_NAME")
        except OSError:
            found["os"] = platform.platform(terse=True)
    found["virtualisation"] = _virtualisation(roots, reasons)


def _virtualisation(roots: Roots, reasons: dict[str, str]) -> str | None:
    """Return who runs this virtual machine, ``none`` on a machine of iron, None where that is unknown."""
    try:
        blocks = cpuinfo(roots.proc / "cpuinfo")
    except CollectorUnavailableError as error:
        reasons["virtualisation"] = error.reason
        return None
    flags = blocks[0].get("flags") if blocks else None
    if flags is not None and "hypervisor" not in flags.split():
        return "none"
    for name in ("class/dmi/id/sys_vendor", "class/dmi/id/product_name", "class/dmi/id/bios_vendor", "hypervisor/type"):
        try:
            told = read_text(roots.sys / name).lower()
        except CollectorUnavailableError:
            continue
        for word, hypervisor in _HYPERVISORS.items():
            if word in told:
                return hypervisor
    if flags is None:
        reasons["virtualisation"] = f"{Why.UNSUPPORTED.value}: this kind of CPU does not tell"
        return None
    return "unknown hypervisor"
