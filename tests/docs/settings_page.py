"""The page of settings and the documented files: ``python -m tests.docs.settings_page .`` writes all three."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

from fedmon.common.settings.keys import (
    HISTORIC,
    OTHER_VARIABLES,
    SECTIONS,
    Key,
    Party,
    documented_file,
    keys_of,
    toml_literal,
)

PARTIES: tuple[Party, ...] = get_args(Party)
_BEFORE = """\
# Settings

Made from `fedmon/common/settings` by `python -m tests.docs.settings_page .`; edit the settings, not this page.

A node reads `node.toml` in its folder; a researcher reads `researcher.toml` in the user's configuration folder (on
Linux `~/.config/fedmon`) or the file that `FEDMON_RESEARCHER_FILE` names, and needs none.
[envs/node.toml](../envs/node.toml) and [envs/researcher.toml](../envs/researcher.toml) show every key.

- An environment variable overrides the file, and a variable of fedmon a historic one. A list in a variable is separated
  by commas. A table can only be set in the file.
- An unknown section, key or `FEDMON_` variable and a bad value are errors that name the file or variable, the key, and
  the allowed values.
- A path is relative to the folder of the file that names it (in a variable: to the working folder); `~` is the user's
  home.
- A secret is never a setting: the settings name a *file* that holds it on one line and that only its owner can read
  (mode 0600; wider modes are refused). A password in a broker URL is refused.
- `fedmon node config show` prints the settings in force, and their origin.
- A running node reads its file again at SIGHUP and after `fedmon node policy`. `id`, `broker`, `wire`,
  `strict_identity`, `monitoring_topic`, `default_plans_dir` and `[recording] enabled` wait for its next start; its log
  names those that have changed.
"""


def page() -> str:
    """Return docs/settings.md."""
    parts = [_BEFORE]
    for title, sections in _titles():
        parts.append(f"## {title}\n")
        for section, keys in sections.items():
            rows = "".join(map(_row, keys))
            parts.append(
                f"### [{section}]\n\n{SECTIONS[section]}\n\n"
                f"| key | meaning | allowed | default | variable |\n|---|---|---|---|---|\n{rows}"
            )
    others = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in OTHER_VARIABLES.items())
    parts.append(f"## Other variables\n\n| variable | meaning |\n|---|---|\n{others}")
    return "\n".join(parts)


def _titles() -> list[tuple[str, dict[str, list[Key]]]]:
    """Sort keys by party."""
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


def _row(key: Key) -> str:
    default = "" if key.default is None or key.is_table else f"`{toml_literal(key.default)}`"
    variables = [f"`{name}`" for name in (key.variable, *_historic(key)) if name]
    cells = (f"`{key.name}`", key.description, key.allowed(), default, ", ".join(variables) or "none")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _historic(key: Key) -> list[str]:
    return [name for name, place in HISTORIC.items() if place == (key.section, key.name)]


def write(root: Path) -> None:
    """Write the three files under the project's root."""
    for party in PARTIES:
        (root / "envs" / f"{party}.toml").write_text(documented_file(party), encoding="utf-8")
    (root / "docs" / "settings.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
