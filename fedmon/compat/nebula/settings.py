"""What a reporter is told: NEBULA's participant file, an object that holds it, or plain keywords."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import msgspec

from fedmon.common.errors import SettingsError
from fedmon.common.ids import ID_PATTERN, RESERVED_IDS, checked_id, new_party_id
from fedmon.node.measure.sampler import MIN_INTERVAL_S

Generation = Literal["old", "1.0.0"]

TEST_CONTROLLER = "nebula-test"
"""The address that stands for no controller at all."""
GRACE_S = 10.0
PERIOD_S = 5.0
MAX_S = 86_400.0
STATUS_PATHS: Mapping[str, tuple[str, str]] = {
    "old": ("nebula/dashboard/{}/node/update", "nebula/dashboard/{}/node/done"),
    "1.0.0": ("nodes/{}/update", "nodes/{}/done"),
}
"""Where status and end of a scenario go, by generation of the controller."""


class ReporterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What was told, checked; ``controller`` is the address of a controller, None for none."""

    node_id: str
    idx: int | str | None
    scenario: str
    report_frequency: float
    grace_time_s: float
    report_status: bool
    controller: str | None
    generation: Generation

    @property
    def status_url(self) -> str:
        """Where each status goes; empty without a controller."""
        return self._url(0)

    @property
    def done_url(self) -> str:
        """Where the end of the scenario is told; empty without a controller."""
        return self._url(1)

    def _url(self, which: int) -> str:
        if self.controller is None:
            return ""
        return f"{self.controller}/{STATUS_PATHS[self.generation][which].format(quote(self.scenario, safe=''))}"


def participant_of(config: object) -> Mapping[str, Any]:
    """Return the participant mapping of what was given as config. Raises SettingsError."""
    if config is None:
        return {}
    participant = config if isinstance(config, Mapping) else getattr(config, "participant", None)
    if not isinstance(participant, Mapping):
        raise SettingsError(
            f"the reporter's config is a {type(config).__name__}: give NEBULA's participant mapping, an object that "
            "has it as .participant, or nothing and plain keywords"
        )
    return participant


def read_participant(file: Path) -> Mapping[str, Any]:
    """Read a participant file, which is never written. Raises SettingsError naming it."""
    try:
        found = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the participant file {file} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise SettingsError(f"the participant file {file} holds no JSON object")
    return found


def section(participant: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return one group of a participant; an empty one where it is missing or is no mapping."""
    found = participant.get(name)
    return found if isinstance(found, Mapping) else {}


def read_settings(
    participant: Mapping[str, Any], keywords: Mapping[str, Any], *, generation: Generation
) -> ReporterSettings:
    """Read what the reporter needs; a keyword that is not None goes before the participant's own value.

    ``keywords`` has the names of the participant's keys, and node_id. Raises SettingsError naming key and range.
    """
    if generation not in STATUS_PATHS:
        raise SettingsError(f"generation={generation!r} is not known: use {' or '.join(map(repr, STATUS_PATHS))}")

    def value(group: str, name: str, default: Any, keyword: str | None = None) -> Any:
        given = keywords.get(keyword or name)
        return section(participant, group).get(name, default) if given is None else given

    idx = value("device_args", "idx", None)
    return ReporterSettings(
        node_id=_node_id(keywords.get("node_id"), section(participant, "device_args").get("uid"), idx),
        idx=idx if isinstance(idx, int | str) else None,
        scenario=str(value("scenario_args", "name", "scenario", "scenario")),
        report_frequency=_seconds(
            value("reporter_args", "report_frequency", PERIOD_S), "report_frequency", MIN_INTERVAL_S
        ),
        grace_time_s=_seconds(value("reporter_args", "grace_time_reporter", GRACE_S), "grace_time_reporter", 0.0),
        report_status=_switch(value("reporter_args", "report_status_data_queue", True)),  # noqa: FBT003  # its default
        controller=_controller(value("scenario_args", "controller", None)),
        generation=generation,
    )


def _node_id(given: object, uid: object, idx: object) -> str:
    if given is not None:
        return checked_id(str(given), what="node_id")
    for candidate in (uid, f"participant-{idx}" if idx is not None else None):
        text = str(candidate) if candidate is not None else ""
        # A plain number would hardly be told from another party's.
        if ID_PATTERN.fullmatch(text) and text not in RESERVED_IDS and not text.isdigit():
            return text
    return new_party_id("participant")


def _seconds(value: object, key: str, low: float) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]  # refused below
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, bool) or not low <= seconds <= MAX_S:
        raise SettingsError(f"{key} = {value!r}: give seconds from {low:g} to {MAX_S:g}")
    return seconds


def _switch(value: object) -> bool:
    if isinstance(value, bool | int):
        return bool(value)
    text = str(value).strip().lower()
    if text not in {"true", "false"}:
        raise SettingsError(f"report_status_data_queue = {value!r}: give true or false")
    return text == "true"


def _controller(value: object) -> str | None:
    """Return the base address of a controller, http:// when it names no scheme; None for none."""
    text = "" if value is None else str(value).strip().rstrip("/")
    if text in ("", TEST_CONTROLLER):
        return None
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
        parts = urlsplit("")
    if "@" in text:  # not repeated: it may hold a password
        raise SettingsError("controller holds an '@': a user and password would be shown in logs; give HOST:PORT")
    if not usable or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise SettingsError(f"controller = {text!r} is no address: give HOST:PORT or http(s)://HOST:PORT")
    return url
