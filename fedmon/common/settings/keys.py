"""Which keys and environment variables exist, what each may hold, and the files that explain them."""

from __future__ import annotations

import json
import textwrap
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fedmon.common.settings.broker import DEFAULT_URL
from fedmon.common.settings.values import ANY_NAME, NodeSettings, PluginSettings, ResearcherSettings

Party = Literal["node", "researcher"]
PARTIES: tuple[Party, ...] = ("node", "researcher")
_OWN: Mapping[Party, type[msgspec.Struct]] = {"node": NodeSettings, "researcher": ResearcherSettings}

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
_WIDTH = 110
_PLAIN = ("a text", "a path", "a list of texts", "a table", "a table of lists of texts")
_SET: Mapping[tuple[str, str], Any] = {("node", "id"): "hospital-north"}
"""Keys that a file must set, with an example."""
_EXAMPLES: Mapping[tuple[str, str], Any] = {
    ("node", "default_plans_dir"): "default_plans",
    ("node", "strict_identity"): True,
    ("researcher", "id"): "researcher-anna",
    ("researcher", "folder"): "~/.local/share/fedmon/researcher",
    ("researcher", "strict_identity"): True,
    ("energy", "region"): "FR",
    ("energy", "gco2e_per_kwh"): 42.5,
    ("energy", "factor_source"): "the contract with our supplier",
    ("energy", "factor_date"): "2024",
    ("energy", "factors_file"): "factors.csv",
    ("broker", "ca_file"): "ca.crt",
    ("broker", "cert_file"): "hospital-north.crt",
    ("broker", "key_file"): "hospital-north.key",
    ("broker", "username"): "hospital-north",
    ("broker", "password_file"): "password",
    ("runs", "python"): "/opt/plans/bin/python",
    ("repository", "url"): "https://files.example.org/upload/",
    ("repository", "token_file"): "token",
    ("store", "token_file"): "store-token",
    ("store", "ca_file"): "store-ca.crt",
}
"""What a key without a default may look like."""
_TABLE_EXAMPLES = {"policy": '"breast cancer" = ["researcher-anna"]', "plugins": 'key = "value"'}
SECTIONS = {
    "node": "Who this node is.",
    "researcher": "Who this researcher is.",
    "broker": "Where the broker is, and how we prove who we are.",
    "policy": "Whom the node obeys, what it lists to whom, and what leaves it.",
    "metrics": "What the node measures.",
    "recording": "What the node keeps of its samples.",
    "runs": "What approved plans may use when they run.",
    "energy": "How energy is measured, and what a kilowatt-hour emits.",
    "perf": "Events of processor and kernel, counted by the program perf (see docs/howtos/perf.md).",
    "plugins": "Settings of the collector plug-ins that [metrics] plugins names, a table for each.",
    "repository": "Files too large for a message.",
    "store": "Access to the metrics store of `fedmon record --to`.",
}
_HEADS = {
    "node": "Every setting of a node, with its default or an example. `fedmon node init` writes such a file as "
    "node.toml into the node's folder; take the '# ' away to set a line.",
    "researcher": "Every setting of a researcher, with its default or an example. The file is researcher.toml in the "
    "user's configuration folder (on Linux ~/.config/fedmon), or the one that FEDMON_RESEARCHER_FILE names; none is "
    "needed.",
}


class Key(msgspec.Struct, frozen=True):
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


def sections_of(party: Party) -> dict[str, type[msgspec.Struct]]:
    """Return the sections of a party's settings file that one class of settings describes, in their order."""
    hints = typing.get_type_hints(_OWN[party])
    return {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}


def keys_of(party: Party) -> tuple[Key, ...]:
    """Return every key of a party's settings file, in the order of the documented file."""
    sections = sections_of(party)
    found = _keys(party, _OWN[party], without=(*sections, "plugins"))
    for section, kind in sections.items():
        if section == "broker":
            found.append(Key(section, "url", _URL, DEFAULT_URL, _description(_URL)))
        if section == "repository" and party == "node":
            found.append(Key("plugins", ANY_NAME, PluginSettings, {}, _description(PluginSettings)))
        found += _keys(section, kind, without=("hosts", "tls"))
    return tuple(found)


def _keys(section: str, struct: type[msgspec.Struct], *, without: tuple[str, ...] = ()) -> list[Key]:
    hints = typing.get_type_hints(struct, include_extras=True)
    return [
        Key(section, field.name, hints[field.name], _default(field), _description(hints[field.name]))
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


def documented_file(party: Party, values: Mapping[tuple[str, str], Any] = _SET) -> str:
    """Return the text of a settings file that explains every key; ``values`` are set, the others are comments.

    ``values`` maps section and key to a text, number, truth value or list of texts.
    """
    keys = keys_of(party)
    parts = [_comment(_HEADS[party])]
    for section in dict.fromkeys(key.section for key in keys):
        parts.append(f"\n[{section}]\n{_comment(SECTIONS[section])}")
        own = [key for key in keys if key.section == section]
        parts += [_entry(key, values) for key in own if not key.is_table]
        parts += [
            f"\n[{section}.{key.name}]\n{_comment(key.description)}\n# {_TABLE_EXAMPLES[section]}"
            for key in own
            if key.is_table
        ]
    return "\n".join(parts) + "\n"


def _entry(key: Key, values: Mapping[tuple[str, str], Any]) -> str:
    place = (key.section, key.name)
    text = key.description if key.allowed() in _PLAIN else f"{key.description} Allowed: {key.allowed()}."
    assignment = f"{key.name} = {toml_literal(values.get(place, _EXAMPLES.get(place, key.default)))}"
    return f"\n{_comment(text)}\n{assignment if place in values else f'# {assignment}'}"


def toml_literal(value: Any) -> str:
    """Return a value as TOML writes it."""
    # The JSON of a text, number, truth value or list of texts is TOML too.
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _comment(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")
