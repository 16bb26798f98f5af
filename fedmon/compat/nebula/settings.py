"""Settings of a reporter: NEBULA's participant file, an object that holds it, or plain keywords."""

from __future__ import annotations

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
"""The address that stands for no controller."""
GRACE_S, PERIOD_S, MAX_S = 10.0, 5.0, 86_400.0
STATUS_PATHS: Mapping[str, tuple[str, str]] = {
    "old": ("nebula/dashboard/{}/node/update", "nebula/dashboard/{}/node/done"),
    "1.0.0": ("nodes/{}/update", "nodes/{}/done"),
}
"""The paths for the status and the end of a scenario, by generation of the controller."""


class ReporterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked settings; the addresses for statuses and for the end of the scenario are empty without a controller."""

    node_id: str
    idx: int | str | None
    scenario: str
    report_frequency: float
    grace_time_s: float
    report_status: bool
    status_url: str
    done_url: str


def participant_of(config: object) -> Mapping[str, Any]:
    """Return the participant mapping of a config. Raises SettingsError."""
    participant = {} if config is None else getattr(config, "participant", config)
    if not isinstance(participant, Mapping):
        raise SettingsError(
            f"the reporter's config is a {type(config).__name__}: give NEBULA's participant mapping, an object that "
            "has it as .participant, or nothing and plain keywords"
        )
    return participant


def read_participant(file: Path) -> Mapping[str, Any]:
    """Read a participant file, which is never written. Raises SettingsError naming it."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the participant file {file} cannot be read: {error}") from None


def section(participant: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return one group of a participant; empty if it is missing or is no mapping."""
    found = participant.get(name)
    return found if isinstance(found, Mapping) else {}


def read_settings(
    participant: Mapping[str, Any], keywords: Mapping[str, Any], *, generation: Generation
) -> ReporterSettings:
    """Read the settings; a keyword that is not None goes before the participant's own value.

    ``keywords`` has the names of the participant's keys, and node_id. Raises SettingsError naming key and range.
    """
    if generation not in STATUS_PATHS:
        raise SettingsError(f"generation={generation!r} is not known: use {' or '.join(map(repr, STATUS_PATHS))}")

    def value(group: str, name: str, default: Any = None, keyword: str | None = None) -> Any:
        given = keywords.get(keyword or name)
        return section(participant, group).get(name, default) if given is None else given

    def seconds(name: str, default: float, low: float) -> float:
        given = value("reporter_args", name, default)
        if isinstance(given, bool) or not isinstance(given, int | float) or not low <= given <= MAX_S:
            raise SettingsError(f"{name} = {given!r}: give seconds from {low:g} to {MAX_S:g}")
        return float(given)

    idx, switch = value("device_args", "idx"), value("reporter_args", "report_status_data_queue", default=True)
    if not isinstance(switch, bool):
        raise SettingsError(f"report_status_data_queue = {switch!r}: give true or false")
    controller = _controller(value("scenario_args", "controller"))
    scenario = str(value("scenario_args", "name", "scenario", "scenario"))
    paths = [path.format(quote(scenario, safe="")) for path in STATUS_PATHS[generation]]
    status_url, done_url = (f"{controller}/{path}" if controller else "" for path in paths)
    return ReporterSettings(
        node_id=_node_id(keywords.get("node_id"), section(participant, "device_args").get("uid"), idx),
        idx=idx if isinstance(idx, int | str) else None,
        scenario=scenario,
        report_frequency=seconds("report_frequency", PERIOD_S, MIN_INTERVAL_S),
        grace_time_s=seconds("grace_time_reporter", GRACE_S, 0.0),
        report_status=switch,
        status_url=status_url,
        done_url=done_url,
    )


def _node_id(given: object, uid: object, idx: object) -> str:
    if given is not None:
        return checked_id(str(given), what="node_id")
    for text in ("" if uid is None else str(uid), "" if idx is None else f"participant-{idx}"):
        # A plain number is easily mistaken for another party's.
        if ID_PATTERN.fullmatch(text) and text not in RESERVED_IDS and not text.isdigit():
            return text
    return new_party_id("participant")


def _controller(value: object) -> str:
    """Return the base address of a controller, http:// if it names no scheme; empty for none."""
    text = "" if value is None else str(value).strip().rstrip("/")
    if text in ("", TEST_CONTROLLER):
        return ""
    if "@" in text:  # not repeated: it may hold a password
        raise SettingsError("controller holds an '@': a user and password would be shown in logs; give HOST:PORT")
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        is_usable = is_usable and not (parts.query or parts.fragment) and url.isprintable() and " " not in url
    except ValueError:
        is_usable = False
    if not is_usable:
        raise SettingsError(f"controller = {text!r} is not an address: give HOST:PORT or http(s)://HOST:PORT")
    return url
