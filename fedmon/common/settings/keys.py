"""Settings keys and environment variables: their values, and the files that explain them."""

from __future__ import annotations

import functools
import json
import textwrap
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fedmon.common.settings.broker import DEFAULT_URL
from fedmon.common.settings.values import ANY_NAME, NodeSettings, PluginSettings, ResearcherSettings

Party = Literal["node", "researcher"]
_OWN: Mapping[Party, type[msgspec.Struct]] = {"node": NodeSettings, "researcher": ResearcherSettings}

HISTORIC: Mapping[str, tuple[str, str]] = {
    "MQTT_BROKER": ("broker", "url"),
    "MQTT_BROKER_PORT": ("broker", "url"),
    "UPLOADS_URL": ("repository", "url"),
    "NODE_ID": ("node", "id"),
    "RESEARCHER_ID": ("researcher", "id"),
}
"""Variables of Fed-BioMed and their settings; the first two change host and port of the broker's URL."""

OTHER_VARIABLES: Mapping[str, str] = {
    "FEDMON_NODE_DIR": "Folder of the node that `fedmon node` works on, unless `--dir` is given.",
    "FEDMON_RESEARCHER_FILE": "Settings file of the researcher, in place of the one in the user's folder.",
    "FEDMON_JOB_ID": "Id of the job that a process belongs to, if no scheduler sets one.",
    "FEDMON_JOB_CGROUPS": "Where a batch system keeps cgroups of jobs, such as `site/jobs/{id}`; several with a colon.",
    "FEDMON_UID": "User that the containers of broker/compose.yaml run as, by number.",
    "FEDMON_GID": "Group that the containers of broker/compose.yaml run as, by number.",
    "FEDMON_REQUIRE_ALL": "Set to 1, the test suite fails instead of skipping a part that is not installed.",
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
_PATH = "path"
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
    ("store", "tenant"): "7",
}
"""Examples for keys without a default."""
_TABLE_EXAMPLES = {"policy": '"breast cancer" = ["researcher-anna"]', "plugins": 'key = "value"'}
SECTIONS = {
    "node": "Who this node is.",
    "researcher": "Who this researcher is.",
    "broker": "Where the broker is, and how we prove who we are.",
    "policy": "Whom the node obeys, the datasets it lists to them, and the data that leaves it.",
    "metrics": "The metrics that the node measures.",
    "recording": "The samples that the node keeps.",
    "runs": "Resources that approved plans may use when they run.",
    "release": "How results of runs leave, and which of them wait for you.",
    "quota": 'The most that each researcher may ask of the node; beyond it the answer is "busy".',
    "energy": "How energy is measured, and the emissions of a kilowatt-hour.",
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
    """One setting: its place, its type with the type's JSON schema, and its default."""

    section: str
    name: str
    type: Any
    default: Any
    schema: Mapping[str, Any]

    @property
    def description(self) -> str:
        """The meaning of the setting."""
        return str(self.schema.get("description", ""))

    @property
    def variable(self) -> str | None:
        """The environment variable that overrides it; None for a table."""
        return None if self.is_table else f"FEDMON_{self.section}_{self.name}".upper()

    @property
    def is_table(self) -> bool:
        """Whether the value maps names to values, and stands below its own header."""
        return self.kind == "object"

    @property
    def is_any_name(self) -> bool:
        """Whether the name stands for any: plug-ins have names that only the owner knows."""
        return self.section == "plugins"

    @property
    def kind(self) -> str:
        """The type of a value in JSON, or "path" for a path, which is relative to the folder of its file."""
        return str(self._part.get("format") or self._part.get("type", "string"))

    @property
    def _part(self) -> Mapping[str, Any]:
        """The schema of a value that is not null."""
        part: Mapping[str, Any] = self.schema.get("anyOf", [self.schema])[0]
        return part

    def allowed(self) -> str:
        """Return the values that are allowed, in words."""
        for part in (self.type, *typing.get_args(self.type)):
            if typing.get_origin(part) is Literal:  # in their order, which a schema does not keep
                return "one of " + ", ".join(f'"{word}"' for word in typing.get_args(part))
        if self.is_table:
            return "a table" if self.is_any_name else "a table of lists of texts"
        kinds = {
            "integer": "a whole number",
            "number": "a number",
            "array": "a list of texts",
            "boolean": "true or false",
            _PATH: "a path",
        }
        words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}
        limits = (f" {word} {self._part[limit]}" for limit, word in words.items() if limit in self._part)
        return kinds.get(self.kind, "a text") + "".join(limits)


def sections_of(party: Party) -> dict[str, type[msgspec.Struct]]:
    """Return the sections of a party's settings file that one class of settings describes, in their order."""
    hints = typing.get_type_hints(_OWN[party])
    return {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}


@functools.cache
def keys_of(party: Party) -> tuple[Key, ...]:
    """Return every key of a party's settings file, in the order of the documented file."""
    sections = sections_of(party)
    found = _keys(party, _OWN[party], without=(*sections, "plugins"))
    for section, kind in sections.items():
        if section == "broker":
            found.append(_key(section, "url", _URL, DEFAULT_URL))
        if section == "repository" and party == "node":
            found.append(_key("plugins", ANY_NAME, PluginSettings, {}))
        found += _keys(section, kind, without=("hosts", "tls"))
    return tuple(found)


def _keys(section: str, struct: type[msgspec.Struct], *, without: tuple[str, ...] = ()) -> list[Key]:
    hints = typing.get_type_hints(struct, include_extras=True)
    return [
        _key(section, field.name, hints[field.name], _default(field))
        for field in msgspec.structs.fields(struct)
        if field.name not in without
    ]


def _key(section: str, name: str, kind: Any, default: Any) -> Key:
    schema = msgspec.json.schema(kind, schema_hook=lambda _path: {"type": "string", "format": _PATH})
    return Key(section, name, kind, default, schema)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None


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
