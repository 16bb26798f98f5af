"""One stream of one boot of one node as blocks, from one recording or from several that hold parts of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedmon.common.store.recording_file import LARGEST, Key
from fedmon.common.store.recording_reader import RecordingRows
from fedmon.common.store.seq_ranges import SeqRanges
from fedmon.report.block import Block
from fedmon.report.decoding import Chooser, Decoded, Decoder

BLOCK_SAMPLES = 8_192
BLOCK_VALUES = 2**20
"""A block takes 8 MiB at most, or one row of the recording."""
_WINDOW_SAMPLES = 65_536
"""Of several recordings so many samples are compared at once."""


class Limits(NamedTuple):
    """What is read; all of it belongs to it, ``until_t`` too."""

    first_seq: int = 0
    last_seq: int = LARGEST
    since_t: float = -math.inf
    until_t: float = math.inf
    series: Chooser | None = None


class Damage:
    """Counts the samples that could not be read."""

    samples = 0


def read_blocks(recordings: Sequence[RecordingRows], key: Key, limits: Limits, damage: Damage) -> Iterator[Block]:
    """Return samples in order, each once. Raises StorageError."""
    if len(recordings) == 1:
        yield from _read(recordings[0], key, limits, damage)
        return
    reaches = [reach for recording in recordings for reach in recording.reaches(key)]
    last = min(limits.last_seq, max((reach.last_seq for reach in reaches), default=-1))
    first = max(limits.first_seq, min((reach.first_seq for reach in reaches), default=0))
    while first <= last:
        window = limits._replace(first_seq=first, last_seq=min(last, first + _WINDOW_SAMPLES - 1))
        yield from _once([_read(recording, key, window, damage) for recording in recordings])
        first = window.last_seq + 1


def _once(parts: Sequence[Iterator[Block]]) -> list[Block]:
    seen = SeqRanges()
    found: list[Block] = []
    for part in parts:
        for block in part:
            found += [block.part(low, high) for low, high in seen.absent(block.seq, block.last_seq)]
            seen.add(block.seq, block.last_seq)
    return sorted(found, key=lambda block: block.seq)


def _read(recording: RecordingRows, key: Key, limits: Limits, damage: Damage) -> Iterator[Block]:
    node_id, stream, _ = key
    decoder = Decoder(limits.series, what=f"stream {stream} of node {node_id}")
    since_t = None if limits.since_t == -math.inf else limits.since_t
    until_t = None if limits.until_t == math.inf else limits.until_t
    position = limits.first_seq
    waiting: list[Decoded] = []
    samples = values = 0

    def taken() -> Iterator[Block]:
        nonlocal position
        for block in _joined(key, waiting):
            # A row may begin before what is wanted, or before what was read when rows were merged meanwhile.
            if block.last_seq >= position and block.seq <= limits.last_seq:
                part = block.part(position, min(block.last_seq, limits.last_seq))
                position = part.last_seq + 1
                yield from _timed(part, limits)
        waiting.clear()

    for row in recording.rows(
        key, first_seq=limits.first_seq, last_seq=limits.last_seq, since_t=since_t, until_t=until_t
    ):
        ready = decoder.add(row)
        if ready is not None:
            waiting.append(ready)
            samples += len(ready.t)
            values += ready.values.size
        if decoder.values + values >= BLOCK_VALUES or decoder.samples + samples >= BLOCK_SAMPLES:
            waiting += filter(None, [decoder.take()])
            yield from taken()
            samples = values = 0
    waiting += filter(None, [decoder.take()])
    yield from taken()
    damage.samples += decoder.damaged


def _joined(key: Key, parts: Sequence[Decoded]) -> Iterator[Block]:
    """Return blocks of what follows each other without a gap."""
    run: list[Decoded] = []
    for part in parts:
        if run and part.first_seq != run[-1].first_seq + len(run[-1].t):
            yield _block(key, run)
            run = []
        run.append(part)
    if run:
        yield _block(key, run)


def _block(key: Key, run: Sequence[Decoded]) -> Block:
    node_id, stream, boot = key
    first = run[0]
    if len(run) == 1:
        t, mono, columns = first.t, first.mono, dict(zip(first.names, first.values, strict=True))
    else:
        t, mono = np.concatenate([one.t for one in run]), np.concatenate([one.mono for one in run])
        names = list(dict.fromkeys(name for one in run for name in one.names))
        places = {name: number for number, name in enumerate(names)}
        values = np.full((len(names), len(t)), np.nan)
        at = 0
        for one in run:
            values[[places[name] for name in one.names], at : at + len(one.t)] = one.values
            at += len(one.t)
        columns = dict(zip(names, values, strict=True))
    return Block(node_id, boot, stream, first.first_seq, t, mono, columns)


def _timed(block: Block, limits: Limits) -> Iterator[Block]:
    """Return the parts of a block between two times; several where the clock was set in between."""
    inside = (block.t >= limits.since_t) & (block.t <= limits.until_t)
    if inside.all():
        yield block
        return
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    for low, high in edges.reshape(-1, 2).tolist():
        yield block.part(block.seq + low, block.seq + high - 1)
