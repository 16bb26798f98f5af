"""The host's files read in the shortest way: kept open, one pread each, parsed without a single check.

The baseline for a collector: the same numbers from the same files, under the same names.
"""

from __future__ import annotations

import os
from collections.abc import Callable

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MEMORY = {
    b"MemTotal": "total", b"MemFree": "free", b"MemAvailable": "available", b"Buffers": "buffers",
    b"Cached": "cached", b"Dirty": "dirty", b"Shmem": "shared", b"Slab": "slab", b"SwapTotal": "swap_total",
    b"SwapFree": "swap_free",
}  # fmt: skip
DISK_COLUMNS = (3, 5, 7, 9, 12)
NETWORK_COLUMNS = (0, 1, 2, 3, 8, 9, 10, 11)


class RawHost:
    """Reads CPU, memory, load, pressure, disks, network, uptime and own memory into one dictionary."""

    def __init__(self, disks: frozenset[bytes], interfaces: frozenset[bytes]) -> None:
        self._disks, self._interfaces = disks, interfaces
        self._files: dict[str, int] = {}
        self._names = {name: [f"disk_{column}_{name.decode()}" for column in DISK_COLUMNS] for name in disks} | {
            name: [f"network_{column}_{name.decode()}" for column in NETWORK_COLUMNS] for name in interfaces
        }
        self._modes = [f"cpu_{mode}" for mode in range(8)]
        self._loads = ["load1", "load5", "load15"]
        self._stalls = {
            resource: [f"pressure_{resource}_{number}" for number in range(4)] for resource in ("cpu", "memory", "io")
        }
        self._earlier = (0.0, 0.0)

    def pread(self, path: str, size_bytes: int) -> bytes:
        """Return a file's content; it is opened once."""
        descriptor = self._files.get(path)
        if descriptor is None:
            descriptor = self._files[path] = os.open(path, os.O_RDONLY)
        return os.pread(descriptor, size_bytes, 0)

    def read(self) -> dict[str, float]:
        """Read everything once."""
        values: dict[str, float] = {}
        for part in self.parts().values():
            part(values)
        return values

    def parts(self) -> dict[str, Callable[[dict[str, float]], None]]:
        """Return the function that reads each group."""
        return {
            "cpu": self.cpu, "memory": self.memory, "load": self.load, "pressure": self.pressure, "disk": self.disk,
            "network": self.network, "uptime": self.uptime, "agent": self.agent,
        }  # fmt: skip

    def cpu(self, values: dict[str, float]) -> None:
        ticks = list(map(int, self.pread("/proc/stat", 512).partition(b"\n")[0].split()[1:9]))
        total, idle = sum(ticks), ticks[3] + ticks[4]
        earlier, self._earlier = self._earlier, (total, idle)
        passed = total - earlier[0]
        values["busy"] = 1 - (idle - earlier[1]) / passed if passed else 0.0
        for key, value in zip(self._modes, ticks, strict=True):
            values[key] = value / TICKS_PER_S
        first, _, last = self.pread("/sys/devices/system/cpu/online", 512).partition(b"-")
        values["count"] = int(last or first) - int(first) + 1

    def memory(self, values: dict[str, float]) -> None:
        for line in self.pread("/proc/meminfo", 16_384).splitlines():
            field, _, size = line.partition(b":")
            key = MEMORY.get(field)
            if key is not None:
                values[key] = int(size[:-3]) * 1024
        values["used"] = values["total"] - values["available"]
        values["swap_used"] = values["swap_total"] - values["swap_free"]

    def load(self, values: dict[str, float]) -> None:
        one, five, fifteen, threads, _ = self.pread("/proc/loadavg", 128).split()
        values["load1"], values["load5"], values["load15"] = float(one), float(five), float(fifteen)
        runnable, _, all_threads = threads.partition(b"/")
        values["runnable"], values["threads"] = int(runnable), int(all_threads)

    def pressure(self, values: dict[str, float]) -> None:
        for resource, keys in self._stalls.items():
            fields = self.pread(f"/proc/pressure/{resource}", 512).split()
            values[keys[0]], values[keys[1]] = float(fields[1][6:]) / 100, int(fields[4][6:]) / 1e6
            values[keys[2]], values[keys[3]] = float(fields[6][6:]) / 100, int(fields[9][6:]) / 1e6

    def disk(self, values: dict[str, float]) -> None:
        for line in self.pread("/proc/diskstats", 16_384).splitlines():
            fields = line.split()
            if fields[2] in self._disks:
                for key, column in zip(self._names[fields[2]], DISK_COLUMNS, strict=True):
                    values[key] = int(fields[column])

    def network(self, values: dict[str, float]) -> None:
        for line in self.pread("/proc/net/dev", 16_384).splitlines()[2:]:
            name, _, numbers = line.partition(b":")
            name = name.strip()
            if name in self._interfaces:
                fields = numbers.split()
                for key, column in zip(self._names[name], NETWORK_COLUMNS, strict=True):
                    values[key] = int(fields[column])

    def uptime(self, values: dict[str, float]) -> None:
        values["uptime"] = float(self.pread("/proc/uptime", 128).split()[0])

    def agent(self, values: dict[str, float]) -> None:
        import time

        values["rss"] = int(self.pread("/proc/self/statm", 128).split()[1]) * PAGE_BYTES
        values["cpu"] = time.process_time()
