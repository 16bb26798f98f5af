"""Skylake and Ice Lake with their server lines; Cascade Lake counts as Skylake's.

Codes: skylake, skylakex, cascadelakex, icelake and icelakex of the lists named in ``intel.py``. Lines that leave the
first level have no code in these lists any more: L1D.M_EVICT (0x51/0x04) for Skylake and L2_TRANS.L1D_WB (0xF0/0x10)
for Ice Lake are those of LIKWID 5.2, which says of the latter that it counts something, without guarantee. Ice
Lake's L2_RQSTS takes the documented kinds of request together: loads, writes, code and software prefetches.
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
from fedmon.node.perf.event import Architecture, Event, Group

_FILLS = core("l1d.replacement", 0x51, 0x01)
_CODE = core("icache_64b.iftag_miss", 0x83, 0x02)
_SOURCE = f"{LISTS}; LIKWID 5.2 for lines that leave the first level; {FORMULAS}"


def _caches(evictions: Event, *, references: int, misses: int) -> tuple[Group, ...]:
    return (
        traffic("l2", _FILLS, evictions, _CODE),
        requests("l2", core("l2_rqsts.references", 0x24, references), core("l2_rqsts.miss", 0x24, misses)),
        traffic("l3", core("l2_lines_in.all", 0xF1, 0x1F), core("l2_trans.l2_wb", 0xF0, 0x40)),
        last_level(),
    )


_SKYLAKE = _caches(core("l1d.m_evict", 0x51, 0x04), references=0xFF, misses=0x3F)
_ICE_LAKE = _caches(core("l2_trans.l1d_wb", 0xF0, 0x10), references=0xEF, misses=0x2F)

ARCHITECTURES: Mapping[str, Architecture] = {
    "skylake": Architecture(
        name="skylake",
        counters=4,
        counters_alone=8,
        groups=(*_SKYLAKE, *fp_arith(128, 256), client_memory()),
        source=_SOURCE,
    ),
    "skylake_x": Architecture(
        name="skylake_x",
        counters=4,
        counters_alone=8,
        groups=(*_SKYLAKE, *fp_arith(128, 256, 512), server_memory()),
        source=_SOURCE,
    ),
    "icelake": Architecture(
        name="icelake",
        counters=8,
        counters_alone=8,
        groups=(*_ICE_LAKE, *fp_arith(128, 256, 512), client_memory()),
        source=_SOURCE,
    ),
    "icelake_x": Architecture(
        name="icelake_x",
        counters=8,
        counters_alone=8,
        groups=(*_ICE_LAKE, *fp_arith(128, 256, 512), server_memory(reads=0x0F, writes=0x30)),
        source=_SOURCE,
    ),
}
