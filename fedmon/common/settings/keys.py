"""Which keys and environment variables exist, and what each may hold."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fedmon.common.settings.broker import DEFAULT_URL, BrokerSettings
from fedmon.common.settings.energy import EnergySettings
from fedmon.common.settings.perf import PerfSettings
from fedmon.common.settings.plugins import ANY_NAME, PluginSettings
from fedmon.common.settings.recording import RecordingSettings
from fedmon.common.settings.runs import RunsSettings
from fedmon.common.settings.values import (
    MetricsSettings,
    NodeSettings,
    PolicySettings,
    RepositorySettings,
    ResearcherSettings,
)

Party = Literal["node", "researcher"]

HISTORIC: Mapping[str, tuple[str, str]] = {
    "MQTT_BROKER": ("broker", "host"),
    "MQTT_BROKER_PORT": ("broker", "port"),
    "UPLOADS_URL": ("repository", "url"),
    "NODE_ID": ("node", "id"),
    "RESEARCHER_ID": ("researcher", "id"),
}
"""Variables of Fed-BioMed and what they set; ``host`` and ``port`` change the broker's URL."""

OTHER_VARIABLES: Mapping[str, str] = {
    "FEDMON_NODE_DIR": "Folder of the node that `fedmon node` works on, where `--dir` is not given.",
    "FEDMON_RESEARCHER_FILE": "Settings file of the researcher, in place of the one in the user's folder.",
    "FEDMON_JOB_ID": "Id of the job that a process belongs to, where no scheduler gives one.",
    "FEDMON_JOB_CGROUPS": "Where a batch system keeps cgroups of jobs, such as `site/jobs/{id}`; several with a colon.",
    "FEDMON_UID": "User that the containers of broker/compose.yaml run as, by number.",
    "FEDMON_GID": "Group that the containers of broker/compose.yaml run as, by number.",
    "FEDMON_REQUIRE_ALL": "Set to 1, the test suite fails where it would skip a part that is not installed.",
}
"""Variables that are no key of a settings file."""

_URL = Annotated[
    str,
    Meta(
        description="mqtt://host[:1883], or mqtts://host[:8883] for TLS; more hosts after commas are tried in turn.",
        min_length=1,
    ),
]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: where it stands, what it may hold, and what it is when nobody sets it."""

    section: str
    name: str
    type: Any
    default: Any
    description: str

    @property
    def variable(self) -> str | None:
        """The environment variable that overrides it; None where a variable could not hold it."""
        return None if self.is_table else f"FEDMON_{self.section}_{self.name}".upper()

    @property
    def is_table(self) -> bool:
        """Whether the value maps names to values, and stands below a header of its own."""
        return typing.get_origin(_bare(self.type)) is Mapping

    @property
    def is_any_name(self) -> bool:
        """Whether the name stands for any: the owner's plug-ins have names that only he knows."""
        return self.section == "plugins"

    @property
    def is_list(self) -> bool:
        """Whether the value is a list of texts, which a variable holds separated by commas."""
        return typing.get_origin(_bare(self.type)) is tuple

    @property
    def is_path(self) -> bool:
        """Whether the value is a path, which is relative to the folder of the file that names it."""
        return _bare(self.type) is Path

    def allowed(self) -> str:
        """Say in words what the value may be."""
        part = _without_none(self.type)
        bare = _bare(part)
        if typing.get_origin(bare) is Literal:
            return "one of " + ", ".join(f'"{word}"' for word in typing.get_args(bare))
        if bare in (int, float):
            return f"a {'whole ' if bare is int else ''}number{_range(_meta(part))}"
        if self.is_table:
            return "a table" if self.is_any_name else "a table of lists of texts"
        if self.is_list:
            return "a list of texts"
        return {bool: "true or false", Path: "a path"}.get(bare, "a text")


def keys_of(party: Party) -> tuple[Key, ...]:
    """Return every key of a party's settings file, in the order of the documented file."""
    url = Key(section="broker", name="url", type=_URL, default=DEFAULT_URL, description=_description(_URL))
    shared = (*_keys("broker", BrokerSettings, without=("hosts", "tls")),)
    own: type[msgspec.Struct] = NodeSettings if party == "node" else ResearcherSettings
    found = [
        *_keys(
            party,
            own,
            without=("broker", "policy", "metrics", "recording", "energy", "perf", "runs", "plugins", "repository"),
        ),
        url,
        *shared,
    ]
    if party == "node":
        found += [
            *_keys("policy", PolicySettings),
            *_keys("metrics", MetricsSettings),
            *_keys("recording", RecordingSettings),
            *_keys("energy", EnergySettings),
            *_keys("perf", PerfSettings),
            *_keys("runs", RunsSettings),
            Key(
                section="plugins",
                name=ANY_NAME,
                type=PluginSettings,
                default={},
                description=_description(PluginSettings),
            ),
        ]
    return (*found, *_keys("repository", RepositorySettings))


def _keys(section: str, struct: type[msgspec.Struct], *, without: tuple[str, ...] = ()) -> list[Key]:
    hints = typing.get_type_hints(struct, include_extras=True)
    return [
        Key(
            section=section,
            name=field.name,
            type=hints[field.name],
            default=_default(field),
            description=_description(hints[field.name]),
        )
        for field in msgspec.structs.fields(struct)
        if field.name not in without
    ]


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None


def _meta(kind: Any) -> Meta:
    return kind.__metadata__[0] if typing.get_origin(kind) is Annotated else Meta()


def _description(kind: Any) -> str:
    return _meta(kind).description or ""


def _bare(kind: Any) -> Any:
    """Return a type without its annotation and without `| None`."""
    kind = _without_none(kind)
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


def _without_none(kind: Any) -> Any:
    """Return the part of `X | None` that is not None, with the annotation that says what it may be."""
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if isinstance(inner, types.UnionType) or typing.get_origin(inner) is typing.Union:
        return next(part for part in typing.get_args(inner) if part is not type(None))
    return kind


def _range(meta: Meta) -> str:
    low = f"from {meta.ge}" if meta.ge is not None else f"above {meta.gt}" if meta.gt is not None else ""
    high = f"to {meta.le}" if meta.le is not None else ""
    return "".join(f" {part}" for part in (low, high) if part)
