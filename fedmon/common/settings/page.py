"""The documented settings files and their page, made from the settings themselves.

``python -m fedmon.common.settings.page ROOT`` writes envs/node.toml, envs/researcher.toml and docs/settings.md.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmon.common.settings.keys import HISTORIC, OTHER_VARIABLES, Key, Party, keys_of

PARTIES: tuple[Party, ...] = ("node", "researcher")
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
}
"""What a key without a default may look like."""
_TABLE_EXAMPLES = {"policy": '"breast cancer" = ["researcher-anna"]', "plugins": 'key = "value"'}
_SECTIONS = {
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
}
_HEADS = {
    "node": "Every setting of a node, with its default or an example. `fedmon node init` writes such a file as "
    "node.toml into the node's folder; take the '# ' away to set a line.",
    "researcher": "Every setting of a researcher, with its default or an example. The file is researcher.toml in the "
    "user's configuration folder (on Linux ~/.config/fedmon), or the one that FEDMON_RESEARCHER_FILE names; none is "
    "needed.",
}
_BEFORE = """\
# Settings

Made from `fedmon/common/settings` by `python -m fedmon.common.settings.page .`; edit the settings, not this page.

A node reads `node.toml` in its folder; a researcher reads `researcher.toml` in the user's configuration folder (on
Linux `~/.config/fedmon`) or the file that `FEDMON_RESEARCHER_FILE` names, and needs none.
[envs/node.toml](../envs/node.toml) and [envs/researcher.toml](../envs/researcher.toml) show every key.

- An environment variable goes before the file, and a variable of ours before a historic one. A list in a variable is
  separated by commas. A table can only be set in the file.
- An unknown section, key or `FEDMON_` variable and a bad value are refused, naming the file or variable, the key, and
  what is allowed.
- A path is relative to the folder of the file that names it (in a variable: to the working folder); `~` is the user's
  home.
- A secret is never a setting: the settings name a *file* that holds it on one line and that only its owner can read
  (mode 0600; anything wider is refused). A password in a broker URL is refused.
- `fedmon node config show` prints what holds, and where it comes from.
"""


def documented_file(party: Party, values: Mapping[tuple[str, str], Any] = _SET) -> str:
    """Return the text of a settings file that explains every key; ``values`` are set, the others are comments.

    ``values`` maps section and key to a text, number, truth value or list of texts.
    """
    keys = keys_of(party)
    parts = [_comment(_HEADS[party])]
    for section in dict.fromkeys(key.section for key in keys):
        parts.append(f"\n[{section}]\n{_comment(_SECTIONS[section])}")
        own = [key for key in keys if key.section == section]
        parts += [_entry(key, values) for key in own if not key.is_table]
        parts += [
            f"\n[{section}.{key.name}]\n{_comment(key.description)}\n# {_TABLE_EXAMPLES[section]}"
            for key in own
            if key.is_table
        ]
    return "\n".join(parts) + "\n"


def page() -> str:
    """Return docs/settings.md."""
    parts = [_BEFORE]
    for title, sections in _titles():
        parts.append(f"## {title}\n")
        for section, keys in sections.items():
            rows = "".join(map(_row, keys))
            parts.append(
                f"### [{section}]\n\n{_SECTIONS[section]}\n\n"
                f"| key | meaning | allowed | default | variable |\n|---|---|---|---|---|\n{rows}"
            )
    others = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in OTHER_VARIABLES.items())
    parts.append(f"## Other variables\n\n| variable | meaning |\n|---|---|\n{others}")
    return "\n".join(parts)


def _titles() -> list[tuple[str, dict[str, list[Key]]]]:
    """Sort keys by who has them."""
    found = {party: {(key.section, key.name): key for key in keys_of(party)} for party in PARTIES}
    shared = found["node"].keys() & found["researcher"].keys()
    return [
        ("Of a node", _by_section([key for place, key in found["node"].items() if place not in shared])),
        ("Of a researcher", _by_section([key for place, key in found["researcher"].items() if place not in shared])),
        ("Of both", _by_section([key for place, key in found["node"].items() if place in shared])),
    ]


def _by_section(keys: list[Key]) -> dict[str, list[Key]]:
    sections: dict[str, list[Key]] = {}
    for key in keys:
        sections.setdefault(key.section, []).append(key)
    return sections


def _entry(key: Key, values: Mapping[tuple[str, str], Any]) -> str:
    place = (key.section, key.name)
    text = key.description if key.allowed() in _PLAIN else f"{key.description} Allowed: {key.allowed()}."
    assignment = f"{key.name} = {_literal(values.get(place, _EXAMPLES.get(place, key.default)))}"
    return f"\n{_comment(text)}\n{assignment if place in values else f'# {assignment}'}"


def _row(key: Key) -> str:
    default = "" if key.default is None or key.is_table else f"`{_literal(key.default)}`"
    variables = [f"`{name}`" for name in (key.variable, *_historic(key)) if name]
    cells = (f"`{key.name}`", key.description, key.allowed(), default, ", ".join(variables) or "none")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _historic(key: Key) -> list[str]:
    if (key.section, key.name) == ("broker", "url"):
        return ["MQTT_BROKER", "MQTT_BROKER_PORT"]
    return [name for name, place in HISTORIC.items() if place == (key.section, key.name)]


def _literal(value: Any) -> str:
    # The JSON of a text, number, truth value or list of texts is TOML too.
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _comment(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def write(root: Path) -> None:
    """Write the three files under the project's root."""
    for party in PARTIES:
        (root / "envs" / f"{party}.toml").write_text(documented_file(party), encoding="utf-8")
    (root / "docs" / "settings.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
