"""The words in which a machine is described."""

from __future__ import annotations

from typing import Any

import msgspec


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """Caches of one kind: ``kind`` is Data, Instruction or Unified, ``count`` how many the machine has of them."""

    level: int
    kind: str
    size_bytes: int | None
    count: int


class MemoryNode(msgspec.Struct, frozen=True, kw_only=True):
    """One NUMA node: its number, the list of its CPUs such as ``0-15``, and its memory."""

    node: int
    cpus: str | None
    memory_bytes: int | None


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """One whole disk."""

    device: str
    model: str | None
    size_bytes: int | None
    rotational: bool | None


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """One network interface that leaves the machine; its speed is known while it has a link."""

    interface: str
    driver: str | None
    speed_bytes_per_second: int | None


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """One InfiniBand or other RDMA adapter, and the rates of its ports such as ``100 Gb/sec (4X EDR)``."""

    device: str
    model: str | None
    link_layers: list[str]
    rates: list[str]


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine is made of.

    ``threads`` are the CPUs that the kernel has, whether on or off. What is unknown is None; ``reasons`` says why,
    by the field's name, or by a name such as ``disks.sda.model``. ``notes`` says what to be careful with.
    ``simulated`` is set when the description is not of the machine that this process runs on.
    """

    simulated: bool
    vendor: str | None
    model: str | None
    architecture: str | None
    microarchitecture: str | None
    sockets: int | None
    cores: int | None
    threads: int | None
    caches: list[Cache] | None
    memory_bytes: int | None
    swap_bytes: int | None
    numa: list[MemoryNode] | None
    disks: list[Disk] | None
    network: list[Interface] | None
    infiniband: list[Adapter] | None
    gpus: list[dict[str, Any]] | None
    os: str | None
    kernel: str | None
    python: str
    virtualisation: str | None
    reasons: dict[str, str]
    notes: dict[str, str]
