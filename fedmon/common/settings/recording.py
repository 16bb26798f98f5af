"""The settings of a node's recording."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class RecordingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the node keeps of its samples, so that what was missed can be asked for again."""

    enabled: Annotated[
        bool, Meta(description="Keep samples in recording.sqlite in the node's folder, and send them again on request.")
    ] = True
    max_bytes: Annotated[
        int,
        Meta(
            description="The most that the recording takes on the disk, in bytes; the oldest samples go first.",
            ge=1_048_576,
            le=1_099_511_627_776,
        ),
    ] = 268_435_456
    max_age_s: Annotated[
        float,
        Meta(description="How long a sample is kept at most, in seconds.", ge=60, le=315_360_000),
    ] = 604_800.0
