"""Haswell and Broadwell.

Codes: haswell, haswellx, broadwell, broadwellde and broadwellx of the lists named in ``intel.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedmon.node.perf.architectures.intel import (
    FORMULAS,
    LISTS,
    client_memory,
    core,
    fp_arith,
    last_level,
    requests,
    server_memory,
    traffic,
)
from fedmon.node.perf.event import Architecture, Group

_NO_FLOPS = "Haswell counts no floating point operations by precision"

_CACHES: tuple[Group, ...] = (
    traffic(
        "l2",
        core("l1d.replacement", 0x51, 0x01),
        core("l2_trans.l1d_wb", 0xF0, 0x10),
        core("icache.misses", 0x80, 0x02),
    ),
    requests("l2", core("l2_rqsts.references", 0x24, 0xFF), core("l2_rqsts.miss", 0x24, 0x3F)),
    traffic("l3", core("l2_lines_in.all", 0xF1, 0x07), core("l2_trans.l2_wb", 0xF0, 0x40)),
    last_level(),
    server_memory(),
    client_memory(),
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "haswell": Architecture(
        name="haswell",
        counters=4,
        counters_alone=8,
        groups=_CACHES,
        missing={
            'perf_flops_per_second{precision="single"}': ("flops_sp", _NO_FLOPS),
            'perf_vectorization_ratio{precision="single"}': ("flops_sp", _NO_FLOPS),
            'perf_flops_per_second{precision="double"}': ("flops_dp", _NO_FLOPS),
            'perf_vectorization_ratio{precision="double"}': ("flops_dp", _NO_FLOPS),
        },
        source=f"{LISTS}; {FORMULAS}",
    ),
    "broadwell": Architecture(
        name="broadwell",
        counters=4,
        counters_alone=8,
        groups=(*_CACHES, *fp_arith(128, 256)),
        source=f"{LISTS}; {FORMULAS}",
    ),
}
