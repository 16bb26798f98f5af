"""Zen, Zen 2 and Zen 3.

Codes: AMD's Processor Programming References for families 17h and 19h, section "Performance Monitor Counters", as the
Linux kernel keeps them (tools/perf/pmu-events/arch/x86/amdzen1, amdzen2, amdzen3). Requests to the second level are
0x60/0xF9 without its own prefetcher, whose requests are 0x70 (found there), 0x71 (found in the third level) and 0x72
(in neither); 0x64/0x09 are the other requests that missed. The counters of memory channels are called approximate by
AMD and see one node of a socket in mode NPS1.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedmon.node.perf.event import Architecture, Counter, Derived, Event, Group

_SOURCE = "AMD PPR for families 17h and 19h, as in Linux tools/perf/pmu-events/arch/x86/amdzen1 to amdzen3"
_PREFETCHES = "l2_pf_hit_l2 + l2_pf_miss_l2_hit_l3 + l2_pf_miss_l2_l3"
_PASSED_ON = "l2_cache_req_stat.ic_dc_miss_in_l2 + l2_pf_miss_l2_hit_l3 + l2_pf_miss_l2_l3"
_CHANNELS = 8


def _core(name: str, event: int, umask: int) -> Event:
    return Event(name=name, pmu="cpu", config=f"event={event:#04x},umask={umask:#04x}")


_INSTRUCTIONS = _core("ex_ret_instr", 0xC0, 0x00)
_REQUESTS = _core("l2_request_g1.all_no_prefetch", 0x60, 0xF9)
_MISSES = _core("l2_cache_req_stat.ic_dc_miss_in_l2", 0x64, 0x09)
_FOUND = _core("l2_pf_hit_l2", 0x70, 0xFF)
_FOUND_IN_L3 = _core("l2_pf_miss_l2_hit_l3", 0x71, 0xFF)
_FOUND_NOWHERE = _core("l2_pf_miss_l2_l3", 0x72, 0xFF)

_L2 = Group(
    name="l2_requests",
    events=(_INSTRUCTIONS, _REQUESTS, _FOUND, _FOUND_IN_L3, _FOUND_NOWHERE),
    derived=(
        Derived(
            metric="perf_l2_bandwidth_bytes_per_second",
            formula="64 * l2_request_g1.all_no_prefetch / seconds",
            topic="l2",
        ),
        Derived(
            metric="perf_l2_requests_per_instruction",
            formula=f"(l2_request_g1.all_no_prefetch + {_PREFETCHES}) / ex_ret_instr",
            topic="l2cache",
        ),
    ),
)
_L2_MISSES = Group(
    name="l2_misses",
    events=(_INSTRUCTIONS, _MISSES, _FOUND_IN_L3, _FOUND_NOWHERE),
    derived=(
        Derived(metric="perf_l2_misses_per_instruction", formula=f"({_PASSED_ON}) / ex_ret_instr", topic="l2cache"),
        Derived(metric="perf_l3_bandwidth_bytes_per_second", formula=f"64 * ({_PASSED_ON}) / seconds", topic="l3"),
    ),
)
_L2_RATIO = Group(
    name="l2_ratio",
    events=(_REQUESTS, _MISSES, _FOUND, _FOUND_IN_L3, _FOUND_NOWHERE),
    derived=(
        Derived(
            metric="perf_l2_miss_ratio",
            formula=f"({_PASSED_ON}) / (l2_request_g1.all_no_prefetch + {_PREFETCHES})",
            topic="l2cache",
        ),
    ),
)
_L3 = Group(
    name="l3cache",
    events=(
        Event(name="l3_lookup_state.all", pmu="amd_l3", config="event=0x04,umask=0xff", counter=Counter.UNCORE),
        Event(name="l3_lookup_state.miss", pmu="amd_l3", config="event=0x04,umask=0x01", counter=Counter.UNCORE),
    ),
    derived=(
        Derived(
            metric="perf_l3_miss_ratio",
            formula="l3_lookup_state.miss / l3_lookup_state.all",
            topic="l3cache",
        ),
    ),
    together=False,
)
_MEMORY = Group(
    name="memory",
    events=tuple(
        Event(
            name=f"dram_channel_data_controller_{number}",
            pmu="amd_df",
            config=f"event={0x07 + 0x40 * number:#05x},umask=0x38",
            counter=Counter.UNCORE,
        )
        for number in range(_CHANNELS)
    ),
    derived=(
        Derived(
            metric="perf_memory_bandwidth_bytes_per_second",
            formula=f"64 * ({' + '.join(f'dram_channel_data_controller_{n}' for n in range(_CHANNELS))}) / seconds",
            topic="memory",
        ),
    ),
    together=False,  # eight events for the four counters of the data fabric
)
_NO_RATE = "the third level has counters of its own, which cannot be read in the same time as instructions"
_NO_WIDTH = "this processor counts operations, not the width of the registers that they are done in"
_NO_PRECISION = 'this processor counts single and double precision together; see precision="any"'


def _flops(topic: str, precision: str, name: str, umask: int) -> Group:
    # More than 15 operations can retire in a cycle, for which the kernel joins two counters (AMD PPR, "MergeEvent").
    return Group(
        name=topic,
        events=(_core(name, 0x03, umask),),
        derived=tuple(
            Derived(
                metric="perf_flops_per_second",
                formula=f"{name} / seconds",
                topic=asked,
                labels={"precision": precision},
            )
            for asked in ((topic,) if precision != "any" else ("flops_sp", "flops_dp"))
        ),
        extra_counters=1,
    )


_ALL_FLOPS = _flops("flops_any", "any", "fp_ret_sse_avx_ops.all", 0xFF)
_SHARED = {
    "perf_l3_requests_per_instruction": ("l3cache", _NO_RATE),
    "perf_l3_misses_per_instruction": ("l3cache", _NO_RATE),
    'perf_vectorization_ratio{precision="single"}': ("flops_sp", _NO_WIDTH),
    'perf_vectorization_ratio{precision="double"}': ("flops_dp", _NO_WIDTH),
}
_TOGETHER = {
    'perf_flops_per_second{precision="single"}': ("flops_sp", _NO_PRECISION),
    'perf_flops_per_second{precision="double"}': ("flops_dp", _NO_PRECISION),
}


def _zen(name: str, flops: tuple[Group, ...], missing: Mapping[str, tuple[str, str]]) -> Architecture:
    return Architecture(
        name=name,
        counters=6,
        counters_alone=6,
        groups=(_L2, _L2_MISSES, _L2_RATIO, _L3, *flops, _MEMORY),
        missing=missing,
        source=_SOURCE,
    )


ARCHITECTURES: Mapping[str, Architecture] = {
    "zen": _zen(
        "zen",
        (
            _flops("flops_sp", "single", "fp_ret_sse_avx_ops.sp", 0x0F),
            _flops("flops_dp", "double", "fp_ret_sse_avx_ops.dp", 0xF0),
        ),
        _SHARED,
    ),
    "zen2": _zen("zen2", (_ALL_FLOPS,), _SHARED | _TOGETHER),
    "zen3": _zen("zen3", (_ALL_FLOPS,), _SHARED | _TOGETHER),
}
