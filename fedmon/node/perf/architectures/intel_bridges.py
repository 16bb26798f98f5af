"""Sandy Bridge and Ivy Bridge.

Codes: sandybridge, jaketown, ivybridge and ivytown of the lists named in ``intel.py``. There, L2_RQSTS (0x24) has one
bit for each kind of hit and one for each kind of miss; all bits are the references, 0xAA are the misses.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedmon.node.perf.architectures.intel import (
    FORMULAS,
    LISTS,
    client_memory,
    core,
    flops,
    last_level,
    requests,
    server_memory,
    traffic,
)
from fedmon.node.perf.event import Architecture, Event, Group

_FILLS = core("l1d.replacement", 0x51, 0x01)
_CODE = core("icache.misses", 0x80, 0x02)


def _bridge(name: str, evictions: Event, write_backs: Event) -> Architecture:
    return Architecture(
        name=name,
        counters=4,
        counters_alone=8,
        groups=(
            traffic("l2", _FILLS, evictions, _CODE),
            requests("l2", core("l2_rqsts.references", 0x24, 0xFF), core("l2_rqsts.miss", 0x24, 0xAA)),
            traffic("l3", core("l2_lines_in.all", 0xF1, 0x07), write_backs),
            last_level(),
            *_floating_point(),
            server_memory(),
            client_memory(),
        ),
        source=f"{LISTS}; {FORMULAS}",
    )


def _floating_point() -> tuple[Group, Group]:
    return (
        flops(
            "single",
            core("fp_comp_ops_exe.sse_scalar_single", 0x10, 0x20),
            [
                (4, core("fp_comp_ops_exe.sse_packed_single", 0x10, 0x40)),
                (8, core("simd_fp_256.packed_single", 0x11, 0x01)),
            ],
        ),
        flops(
            "double",
            core("fp_comp_ops_exe.sse_scalar_double", 0x10, 0x80),
            [
                (2, core("fp_comp_ops_exe.sse_packed_double", 0x10, 0x10)),
                (4, core("simd_fp_256.packed_double", 0x11, 0x02)),
            ],
        ),
    )


ARCHITECTURES: Mapping[str, Architecture] = {
    "sandybridge": _bridge("sandybridge", core("l1d.eviction", 0x51, 0x04), core("l2_trans.l2_wb", 0xF0, 0x40)),
    "ivybridge": _bridge("ivybridge", core("l2_trans.l1d_wb", 0xF0, 0x10), core("l2_lines_out.dirty_all", 0xF2, 0x0A)),
}
