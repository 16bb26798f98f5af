"""The text of node.toml: written with a comment on every key, and changed so that the owner's comments survive."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.settings import PolicySettings
from fedmon.common.settings.keys import Key, keys_of

_WIDTH = 110
_HEAD = """\
# Settings of this node. Environment variables named FEDMON_<SECTION>_<KEY> go before what is written here.
# After a change: `fedmon node policy` verbs take effect at once, everything else at the next `fedmon node start`.
"""
_ALWAYS_SET = "policy"
"""The section that the verbs change: each value stands below its comment from the start, and is replaced there."""
_PLAIN = ("a text", "a path", "a list of texts", "a table of lists of texts")
_SECTIONS = {
    "node": "Who this node is.",
    "broker": "Where the broker is, and how this node proves who it is.",
    "policy": "Whom this node obeys, what it lists to whom, and what leaves it; `fedmon node policy` changes it.",
    "metrics": "What this node measures.",
    "repository": "Where training plans come from that are too large for a message.",
}


def new_settings(values: Mapping[tuple[str, str], Any]) -> str:
    """Return the text of a settings file with every key explained; those of ``values`` are set, the others comments.

    ``values`` maps section and key to a text, number or list of texts.
    """
    keys = keys_of("node")
    lines = [_HEAD]
    for section in dict.fromkeys(key.section for key in keys):
        lines.append(f"\n[{section}]\n# {_SECTIONS[section]}\n\n")
        lines += [_described(key, values) for key in keys if key.section == section and not key.is_table]
        lines += [
            f'\n[{section}.{key.name}]\n{_comment(key)}\n# "a dataset" = ["researcher-1"]\n'
            for key in keys
            if key.section == section and key.is_table
        ]
    return "".join(lines)


def with_policy(text: str, policy: PolicySettings) -> str:
    """Return the text with these rules in its [policy] section; nothing else changes, comments included."""
    import tomlkit

    document = tomlkit.parse(text)
    section: Any = document.setdefault("policy", tomlkit.table())
    for name in PolicySettings.__struct_fields__:
        value = msgspec.to_builtins(getattr(policy, name))
        default = msgspec.to_builtins(getattr(PolicySettings(), name))
        if name not in section and value == default:
            continue
        if isinstance(value, dict):
            _put_table(section, name, value)
        elif isinstance(value, tuple):
            _put_list(section, name, value)
        elif section.get(name) != value:
            section[name] = value
    return tomlkit.dumps(document)


def _put_table(section: Any, name: str, value: Mapping[str, Any]) -> None:
    import tomlkit

    if name not in section:
        is_inline = isinstance(section, tomlkit.items.InlineTable)
        section[name] = tomlkit.inline_table() if is_inline else tomlkit.table()
    table = section[name]
    for key in [key for key in table if key not in value]:
        del table[key]
    for key, names in value.items():
        _put_list(table, key, names)


def _put_list(table: Any, name: str, value: Sequence[str]) -> None:
    """Take out and add single names, so that a comment beside one that stays is kept."""
    if not isinstance(table.get(name), list):
        table[name] = list(value)
        return
    present = table[name]
    for known in [known for known in present if known not in value]:
        present.remove(known)
    for wanted in value:
        if wanted not in present:
            present.append(wanted)


def _described(key: Key, values: Mapping[tuple[str, str], Any]) -> str:
    place = (key.section, key.name)
    if place in values or key.section == _ALWAYS_SET:
        return f"{_comment(key)}\n{key.name} = {_toml(values.get(place, key.default))}\n"
    shown = _toml(key.default) if key.default is not None else ""
    return f"{_comment(key)}\n# {key.name} = {shown}".rstrip() + "\n"


def _comment(key: Key) -> str:
    allowed = key.allowed()
    text = key.description if allowed in _PLAIN else f"{key.description} Allowed: {allowed}."
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _toml(value: Any) -> str:
    if isinstance(value, Path):
        value = str(value)
    # A JSON text, number, truth value or list of texts is TOML too.
    return msgspec.json.encode(value).decode()
