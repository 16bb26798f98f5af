"""Samples: one reading of everything that a stream measures, and batches of such readings as they travel."""

from __future__ import annotations

from typing import Self

import msgspec

from fedmon.common.wire.envelope import Count, Id, Message, ShortText

USER_STREAM = "user"
"""The stream of values that programs on a node report; those of a run are in their researcher's own stream."""


class Instant(msgspec.Struct, frozen=True, kw_only=True):
    """One moment on both clocks: ``t`` in Unix seconds for people, ``mono`` in monotonic seconds for differences."""

    t: float
    mono: float


class Sample(Instant, frozen=True, kw_only=True):
    """The readings of all collectors at one tick.

    ``values`` maps a series such as ``host_disk_read_bytes_total{device="sda"}`` to its value, or to None where this
    one reading was missed; ``reasons`` says why for those series. ``t`` and ``mono`` are as in Instant. The mappings
    belong to the sample and are not changed after it was made.
    """

    values: dict[str, float | None]
    reasons: dict[str, str] = {}


def rate(earlier: float | None, later: float | None, elapsed_s: float) -> float | None:
    """Return the growth a second between two readings of a counter, ``elapsed_s`` monotonic seconds apart.

    None when a reading is missing, when no time passed, and when the counter went back, which means that it was
    restarted and that its count in between is unknown.
    """
    if earlier is None or later is None or elapsed_s <= 0 or later < earlier:
        return None
    return (later - earlier) / elapsed_s


def user_stream(researcher_id: str) -> str:
    """Return the stream of values that the runs of one researcher report."""
    return f"{USER_STREAM}-{researcher_id}"


def is_user_stream(stream: str) -> bool:
    """Tell whether a stream holds values that programs or runs reported."""
    return stream == USER_STREAM or stream.startswith(f"{USER_STREAM}-")


def may_read(stream: str, researcher_id: str) -> bool:
    """Tell whether a researcher may read a stream: values of runs are for their own researcher."""
    return not stream.startswith(f"{USER_STREAM}-") or stream == user_stream(researcher_id)


class Batch(Message, frozen=True, kw_only=True, tag="sample"):
    """Samples ``seq`` to ``last_seq`` of one stream of one boot of one node; also the message that carries them.

    ``t`` is Unix time and ``mono`` monotonic time, in seconds. ``columns``, on the wire ``m``, maps a series such as
    ``host_disk_read_bytes_total{device="sda"}`` to one value a sample. A null that has an entry in ``reasons`` is a
    reading that was missed; one without means that the series was not read for this sample, because it is read less
    often or was not there.
    """

    node_id: Id
    boot: Count
    stream: ShortText
    seq: Count
    t: list[float]
    mono: list[float]
    columns: dict[str, list[float | None]] = msgspec.field(name="m")
    reasons: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def m(self) -> dict[str, list[float | None]]:
        """The columns, by their name on the wire."""
        return self.columns

    @property
    def last_seq(self) -> int:
        """The number of the last sample; ``seq - 1`` when there is none."""
        return self.seq + len(self.t) - 1

    def part(self, first_seq: int, last_seq: int) -> Self:
        """Return the samples of this batch from ``first_seq`` to ``last_seq``, both included."""
        low, high = max(0, first_seq - self.seq), max(0, min(last_seq, self.last_seq) - self.seq + 1)
        if (low, high) == (0, len(self.t)):
            return self
        cut = {key: column[low:high] for key, column in self.columns.items()}
        return msgspec.structs.replace(
            self,
            seq=self.seq + low,
            t=self.t[low:high],
            mono=self.mono[low:high],
            columns={key: part for key, part in cut.items() if key in self.reasons or any(v is not None for v in part)},
        )

    def only(self, series: list[str]) -> Self:
        """Return a batch with these of its series alone, in this order."""
        columns = {key: self.columns[key] for key in series}
        return msgspec.structs.replace(
            self, columns=columns, reasons={key: why for key, why in self.reasons.items() if key in columns}
        )
