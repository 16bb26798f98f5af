"""Small recordings for tables, and tables that are just there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.report.blocks import Block
from fedmon.report.charts import Charts, Choice, charts_of, read_bins
from fedmon.report.source import Source
from fedmon.report.subject import choose

T0 = 1_763_700_000.0
HOSTILE = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "' onmouseover='alert(1)",
    "</style><script>1</script>", "javascript:alert(1)", "</title><h1>x", "<!--", "-->", "]]>", "&lt;script&gt;",
    "&#x3C;script&#x3E;", "</svg>", "${7*7}", "{{7*7}}", "%s%n%d", "%", "%0A", "%zz", "{0}{nb}", "$x$", "$x^{2$",
    "\\frac{1}{0}", "$(reboot)", "`reboot`", "; rm -rf /", "'; DROP TABLE batch; --", "../../etc/passwd", "/", ".",
    "..", "=cmd|' /C calc'!A0", "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " ", " a ", ",", "a,b", "=", "a=b", ";",
    '"', 'a"b', "'", "\\", "a\\", "a\\n", '\\"', "\n", "a\nb", "a\r\nSet-Cookie: x", "\t", "\x00", "a\x00b", "\x7f",
    "a\x1b[31mred", "\u202egnp.exe", "\u200b", "\ufeff", "\u2028line", "\ud7ff", "\ufffe", "e\u0301\u0301\u0301",
    "\U0001f525 fire", "\u4f5c\u696d", "\u05d0\u05d1\u05d2", "\u0645\u0631\u062d\u0628\u0627", "\u0e01\u0e32\u0e23",
    "_hidden", "a_b^c", "# EOF", '{a="b"}', "NULL", "nan", "**bold**", "|a|b|", "x" * 5000,
)  # fmt: skip
"""Texts that others may give as names and labels."""
Column = list[float | None]
COUNTED = "perf_counted_seconds_total"
SWITCHES = 'perf_events_total{group="software",event="context-switches"}'


def samples(
    columns: Mapping[str, Sequence[float | None]],
    *,
    node: str = "n1",
    stream: str = "host",
    boot: int = 1,
    seq: int = 0,
    t: Sequence[float] | None = None,
    mono: Sequence[float] | None = None,
    step_s: float = 1.0,
    late_s: float = 0.0,
) -> Batch:
    """Return samples, a second apart unless times are given, by a clock that is late."""
    length = len(next(iter(columns.values())))
    moments = [T0 + (seq + at) * step_s + late_s for at in range(length)] if t is None else list(t)
    return Batch(
        node_id=node,
        boot=boot,
        stream=stream,
        seq=seq,
        t=moments,
        mono=[moment - T0 - late_s + 1000 for moment in moments] if mono is None else list(mono),
        columns={name: list(column) for name, column in columns.items()},
    )


def counted_by_perf() -> list[Batch]:
    """What perf counted of a machine and a job; the last sample comes early, and tells of a whole second as well."""
    t, seconds = [T0 + tick for tick in (0.0, 1.0, 2.0, 3.0, 3.4)], [1.0, 2.0, 3.0, 4.0, 5.0]
    streams = {"host": 5000, "job-7": 100}
    return [samples({COUNTED: seconds, SWITCHES: [each * at for at in seconds]}, stream=stream, t=t)
            for stream, each in streams.items()]  # fmt: skip


def block(seq: int, mono: ArrayLike, columns: Mapping[str, ArrayLike], *, boot: int = 1,
          stream: str = "host", ahead_s: float = 1e9) -> Block:  # fmt: skip
    """Return samples as they are read."""
    times = np.array(mono, dtype=np.float64)
    arrays = {name: np.array(values, dtype=np.float64) for name, values in columns.items()}
    return Block("n1", boot, stream, seq, times + ahead_s, times, arrays)


def recording(path: Path, *batches: Batch, documents: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """Store samples one batch after another, and what is known of nodes."""
    with Recording(path) as store:
        for batch in batches:
            store.append([batch])
        for node, document in (documents or {}).items():
            store.describe(node, 1, document)
    return path


def made(path: Path, *batches: Batch, **choice: Any) -> Charts:
    """Return the charts of samples."""
    with Source([recording(path, *batches)]) as source:
        subject = choose(source)
        chosen = Choice(**choice)
        return charts_of(read_bins(subject, wanted=chosen.wanted), subject, choice=chosen)


class FixedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of which every batch is given."""

    parts: list[pa.RecordBatch]
    name: str = "wide"

    @property
    def schema(self) -> pa.Schema:
        return self.parts[0].schema

    @property
    def rows(self) -> int:
        return sum(part.num_rows for part in self.parts)

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.parts
