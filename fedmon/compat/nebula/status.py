"""What a controller is told of a participant: what it reads, and nothing else of the config."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fedmon.compat.nebula.settings import section

SENT: Mapping[str, tuple[str, ...]] = {
    "device_args": ("uid", "idx", "name", "role", "malicious"),
    "network_args": ("ip", "port", "neighbors"),
    "scenario_args": ("name", "federation", "rounds", "n_nodes"),
    "federation_args": ("round",),
    "tracking_args": ("run_hash",),
}
"""The keys that leave, by group: those that a controller shows or keeps."""

ABSENT: Mapping[str, tuple[str, ...]] = {"mobility_args": ("latitude", "longitude", "neighbors_distance")}
"""Keys that a controller cannot do without, and that are always null: where a machine stands is nobody's business."""

MAX_TEXT = 256
MAX_ENTRIES = 1024


def status_body(participant: Mapping[str, Any], stamp: Mapping[str, Any]) -> bytes:
    """Return one status as JSON: the keys above, null where the participant has none, and ``stamp`` under "fedmon".

    What JSON cannot carry, and text that is too long for what these keys hold, becomes null.
    """
    body: dict[str, dict[str, Any]] = {
        group: {name: _plain(section(participant, group).get(name)) for name in names} for group, names in SENT.items()
    }
    body.update({group: dict.fromkeys(names) for group, names in ABSENT.items()})
    body["fedmon"] = dict(stamp)
    return json.dumps(body, allow_nan=False).encode()


def _plain(value: object) -> Any:
    """Return a value that JSON can carry as it is: a scalar, or a list of scalars."""
    if isinstance(value, list | tuple | set | frozenset):
        entries = [entry for entry in map(_scalar, value) if entry is not None]
        return (sorted(entries, key=str) if isinstance(value, set | frozenset) else entries)[:MAX_ENTRIES]
    return _scalar(value)


def _scalar(value: object) -> str | int | float | bool | None:
    if isinstance(value, str):
        # Neighbours are one text of addresses.
        return value if len(value) <= MAX_TEXT * 32 else None
    if isinstance(value, bool | int):
        return value if abs(value) < 2**63 else None
    if isinstance(value, float) and math.isfinite(value):
        return value
    return None
