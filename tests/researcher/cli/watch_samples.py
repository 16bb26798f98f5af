"""Samples as a watch hands them out, for tests of what is shown."""

from __future__ import annotations

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire.samples import MonitorReply
from fedmon.researcher.samples.watch import LiveSample


def live(
    node: str = "north",
    seq: int = 0,
    *,
    stream: str = "host",
    boot: int = 1,
    mono: float | None = None,
    reasons: dict[str, str] | None = None,
    late: bool = False,
    **values: float | None,
) -> LiveSample:
    at = float(seq) if mono is None else mono
    return LiveSample(
        node_id=NodeId(node), boot=boot, stream=stream, seq=seq, t=1e9 + at, mono=at, values=values,
        reasons=reasons or {}, late=late,
    )  # fmt: skip


def labelled(sample: LiveSample, series: dict[str, float | None]) -> LiveSample:
    return msgspec.structs.replace(sample, values={**sample.values, **series})


def said(node: str, **capabilities: str | None) -> MonitorReply:
    return MonitorReply(
        node_id=node, researcher_id="r", id="1", session="s", sequence=1, action="start", interval_s=1.0,
        streams=["host"], capabilities=capabilities, metrics=[],
    )  # fmt: skip
