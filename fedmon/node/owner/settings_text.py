"""The text of node.toml: written with a comment on every key, and changed so that the owner's comments survive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.settings import PolicySettings


def new_settings(values: Mapping[tuple[str, str], Any]) -> str:
    """Return the text of a new node's settings file; ``values`` maps section and key to what is set.

    The rules are set from the start too, each below its comment, so that a change finds its place.
    """
    from fedmon.common.settings.keys import documented_file

    rules = {
        ("policy", name): value
        for name, value in msgspec.to_builtins(PolicySettings()).items()
        if not isinstance(value, dict)
    }
    given = {place: str(value) if isinstance(value, Path) else value for place, value in values.items()}
    return documented_file("node", rules | given)


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
