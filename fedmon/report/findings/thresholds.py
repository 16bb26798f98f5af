"""The limits at which a finding changes what it says, each with its reason; a value that lies on a limit is past it."""

from __future__ import annotations

import msgspec

from fedmon.common.metrics.metric import Unit


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """A limit in a base unit, and the reason why it lies there."""

    name: str
    value: float
    unit: Unit
    why: str


CPU_LOW = Threshold(
    name="CPU use low",
    value=0.6,
    unit=Unit.RATIO,
    why="below this, two of five CPUs could be given back and the job would run as long",
)
CPU_VERY_LOW = Threshold(
    name="CPU use very low",
    value=0.2,
    unit=Unit.RATIO,
    why="four of five CPUs did nothing: most often a program with one thread, or one that waits",
)
LONGER = Threshold(
    name="longer with fewer CPUs",
    value=0.05,
    unit=Unit.RATIO,
    why="a job that takes a twentieth longer with fewer CPUs starts earlier by more than that",
)
CPU_HIGH = Threshold(
    name="CPUs full",
    value=0.95,
    unit=Unit.RATIO,
    why="what is left goes to the system itself: more CPUs could make it faster",
)
MEMORY_NEAR_LIMIT = Threshold(
    name="memory near its limit",
    value=0.9,
    unit=Unit.RATIO,
    why="a tenth more and the kernel kills, and inputs differ by more than that",
)
MEMORY_FAR_FROM_LIMIT = Threshold(
    name="memory asked for in vain",
    value=0.25,
    unit=Unit.RATIO,
    why="three quarters of what was asked for kept others waiting; half is a sensible reserve",
)
GPU_IDLE = Threshold(
    name="GPU idle",
    value=0.9,
    unit=Unit.RATIO,
    why="share of the time below 5 % use: a GPU that worked for less than a tenth of the time was not needed",
)
GPU_OFTEN_IDLE = Threshold(
    name="GPU often idle",
    value=0.4,
    unit=Unit.RATIO,
    why="share of the time below 5 % use: usually input that comes too slowly",
)
GPU_LOW = Threshold(
    name="GPU use low",
    value=0.15,
    unit=Unit.RATIO,
    why="mean use: kernels too short or too small to fill the device",
)
IO_WAIT_HIGH = Threshold(
    name="waiting for disks",
    value=0.1,
    unit=Unit.RATIO,
    why="a tenth of the CPU time was lost to storage",
)
IO_WAIT_VERY_HIGH = Threshold(
    name="waiting for disks most of the time",
    value=0.3,
    unit=Unit.RATIO,
    why="storage, not the CPU, decides how long the job takes",
)
PRESSURE_HIGH = Threshold(
    name="stalled by a resource",
    value=0.1,
    unit=Unit.RATIO,
    why="share of the time in which all work stood still: it was lost altogether",
)
CPU_PRESSURE_HIGH = Threshold(
    name="waiting for CPUs",
    value=0.5,
    unit=Unit.RATIO,
    why="share of the time in which some thread wanted a CPU and had none; some of it is normal on a full machine",
)
THROTTLED = Threshold(
    name="held back",
    value=0.05,
    unit=Unit.RATIO,
    why="share of the time: from here on it shows in the running time",
)
THROTTLED_MUCH = Threshold(
    name="held back for long",
    value=0.25,
    unit=Unit.RATIO,
    why="share of the time: a quarter of it at less than full speed",
)
STOLEN = Threshold(
    name="CPU time stolen",
    value=0.05,
    unit=Unit.RATIO,
    why="share of the CPU time that the host of this virtual machine gave to others",
)
IMBALANCE = Threshold(
    name="nodes unequal",
    value=0.25,
    unit=Unit.RATIO,
    why="how far the mean lies below the busiest: so much of all nodes is paid for and waits",
)
NEGLIGIBLE_CPUS = Threshold(
    name="too little to compare",
    value=0.05,
    unit=Unit.COUNT,
    why="busy CPUs: below this a node does nothing, and shares of nothing mean nothing",
)
NEGLIGIBLE_BYTES = Threshold(
    name="too few bytes to compare",
    value=100 * 2**20,
    unit=Unit.BYTES,
    why="100 MiB is what a shell, its libraries and a few messages move",
)
SWAPPED = Threshold(
    name="swapping",
    value=2**20,
    unit=Unit.BYTES_PER_SECOND,
    why="memory read back from swap: 1 MiB a second is some 250 page faults a second, each a wait for storage",
)
SWAP_HELD = Threshold(
    name="memory in swap",
    value=64 * 2**20,
    unit=Unit.BYTES,
    why="below 64 MiB it is what idle programs leave there",
)
GAP = Threshold(
    name="gaps in the recording",
    value=0.01,
    unit=Unit.RATIO,
    why="share of the time without samples: up to here sums and means are still right to the percent",
)
GAP_LARGE = Threshold(
    name="much is missing",
    value=0.1,
    unit=Unit.RATIO,
    why="share of the time without samples: what is said here may be wrong by as much",
)
FEW_SAMPLES = Threshold(
    name="few samples",
    value=10,
    unit=Unit.COUNT,
    why="with fewer a single one moves every mean by more than a tenth",
)
CLOCKS_APART = Threshold(
    name="clocks apart",
    value=0.5,
    unit=Unit.SECONDS,
    why="more than a clock that is kept by NTP is off, and half of a sample at 1 Hz",
)
CLOCK_SET = Threshold(
    name="clock set",
    value=1.0,
    unit=Unit.SECONDS,
    why="slewing moves a clock by milliseconds; a second is a step",
)
FILESYSTEM_FULL = Threshold(
    name="file system full",
    value=0.95,
    unit=Unit.RATIO,
    why="many file systems keep 5 % for root, so programs find no room above this",
)
TIME_LIMIT_NEAR = Threshold(
    name="near the time limit",
    value=0.95,
    unit=Unit.RATIO,
    why="share of the time that the job was given: a slower run would be cut off",
)
TOOL_COST = Threshold(
    name="cost of measuring",
    value=0.01,
    unit=Unit.RATIO,
    why="CPU time of the tool as share of one CPU: above this it is part of what it measures",
)

ALL: tuple[Threshold, ...] = tuple(one for one in globals().values() if isinstance(one, Threshold))
"""Every limit, in the order in which they stand here."""
