"""The owner's changes to node.toml, written down in the audit before they count."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.errors import ConflictError, SettingsError, StorageError
from fedmon.common.settings import PolicySettings, load_node
from fedmon.node.owner.desk import Desk
from fedmon.node.requests.policy import Policy

_POLICY_VARIABLE = "FEDMON_POLICY_"


class WriteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole new text of node.toml, and the digest of the text that it was made from.

    ``change`` says what the owner asked for, for the audit.
    """

    text: str
    made_from_sha256: str
    change: dict[str, Any]
    by: str = ""


def write_settings(desk: Desk, args: WriteSettings) -> dict[str, Any]:
    """Replace node.toml and obey it from now on.

    Raises ConflictError when somebody else changed the file meanwhile, and SettingsError, with the old text back in
    place, when the new one is refused.
    """
    path = desk.folder.settings_file
    try:
        before = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    if hashlib.sha256(before).hexdigest() != args.made_from_sha256:
        raise ConflictError(f"{path} was changed by somebody else at the same time: try again")
    desk.audit.record_durably("policy-change", change=args.change, by=args.by)
    desk.folder.write_private(path, args.text.encode())
    try:
        desk.settings = load_node(desk.folder.path, desk.environ)
        written = load_node(desk.folder.path, _without_policy(desk.environ)).policy
    except SettingsError:
        desk.folder.write_private(path, before)
        desk.audit.record_durably("policy-change-undone", change=args.change, by=args.by)
        raise
    desk.follow(desk.settings)
    policy = Policy(desk.settings.policy, desk.settings.id)
    return {
        "policy": msgspec.to_builtins(desk.settings.policy),
        "rules": list(policy.describe()),
        "obeys_nobody": policy.obeys_nobody,
        "overridden_by": _overriding(written, desk.settings.policy),
    }


def _without_policy(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environ.items() if not name.startswith(_POLICY_VARIABLE)}


def _overriding(written: PolicySettings, effective: PolicySettings) -> list[str]:
    """Name the environment variables that make the node obey something else than what was written."""
    return [
        f"{_POLICY_VARIABLE}{name}".upper()
        for name in PolicySettings.__struct_fields__
        if getattr(written, name) != getattr(effective, name)
    ]


SETTINGS_COMMANDS: Mapping[str, tuple[type[Any], Any]] = {"settings-write": (WriteSettings, write_settings)}
