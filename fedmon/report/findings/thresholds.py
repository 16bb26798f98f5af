"""The limits at which a finding changes, each with its reason; a value on a limit is past it."""

from __future__ import annotations

CPU_LOW = 0.6
"""Below this, two of five CPUs could be given back and the job would run as long."""
CPU_VERY_LOW = 0.2
"""Four of five CPUs did nothing: most often a program with one thread, or one that waits."""
LONGER = 0.05
"""A job that takes a twentieth longer with fewer CPUs starts earlier by more than that."""
CPU_HIGH = 0.95
"""The rest goes to the system itself: more CPUs could make it faster."""
MEMORY_NEAR_LIMIT = 0.9
"""A tenth more and the kernel kills, and inputs differ by more than that."""
MEMORY_FAR_FROM_LIMIT = 0.25
"""Three quarters of the request kept others waiting; half is a sensible reserve."""
GPU_BUSY = 0.05
"""A driver's and a monitor's own use of a GPU stay below."""
GPU_IDLE = 0.9
"""Share of the time below 5 % use: a GPU that worked for less than a tenth of the time was not needed."""
GPU_OFTEN_IDLE = 0.4
"""Share of the time below 5 % use: usually input that comes too slowly."""
GPU_LOW = 0.15
"""Mean use: kernels too short or too small to fill the device."""
IO_WAIT_HIGH = 0.1
"""A tenth of the CPU time was lost to storage."""
IO_WAIT_VERY_HIGH = 0.3
"""Storage, not the CPU, decides how long the job takes."""
PRESSURE_HIGH = 0.1
"""Share of the time in which all work waited: it was lost."""
CPU_PRESSURE_HIGH = 0.5
"""Share of the time in which some thread wanted a CPU and had none; some of it is normal on a full machine."""
THROTTLED = 0.05
"""Share of the time: from here on it shows in the running time."""
THROTTLED_MUCH = 0.25
"""Share of the time: a quarter of it at less than full speed."""
STOLEN = 0.05
"""Share of the CPU time that the host of this virtual machine gave to others."""
IMBALANCE = 0.25
"""Distance of the mean from the busiest: this share of all nodes is paid for and waits."""
NEGLIGIBLE_CPUS = 0.05
"""Busy CPUs: below this a node does nothing, and shares of nothing mean nothing."""
GAP = 0.01
"""Share of the time without samples: up to here sums and means are still right to the percent."""
GAP_LARGE = 0.1
"""Share of the time without samples: findings may be wrong by as much."""
FEW_SAMPLES = 10
"""With fewer a single one moves every mean by more than a tenth."""
TIME_LIMIT_NEAR = 0.95
"""Share of the time that the job was given: a slower run would be cut off."""
