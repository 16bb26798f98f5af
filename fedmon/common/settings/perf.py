"""Whether and what perf counts."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PerfGroup = Literal[
    "software", "cycles", "branches", "cache", "l2", "l2cache", "l3", "l3cache", "flops_sp", "flops_dp", "memory"
]


class PerfSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The program perf, which counts events of processor and kernel."""

    enabled: Annotated[
        bool,
        Meta(description="Count events of processor and kernel with the program perf, of the machine and of jobs."),
    ] = False
    groups: Annotated[
        tuple[PerfGroup, ...],
        Meta(
            description="What is counted: software (always), cycles, branches, cache, l2, l2cache, l3, l3cache, "
            "flops_sp, flops_dp, memory. The more, the less of the time a counter is free for each."
        ),
    ] = ("software", "cycles", "branches", "cache")
    interval_s: Annotated[
        float, Meta(description="Seconds between two readings of the counters by perf.", ge=0.1, le=60)
    ] = 1.0
    command: Annotated[
        str, Meta(description="The program to start, found on PATH or given as a path.", min_length=1)
    ] = "perf"
