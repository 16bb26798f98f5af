"""Submission of plans, and of other files: inside the message while they fit, else through the repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.settings.values import RepositorySettings
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.messages import TrainingPlanStatus

if TYPE_CHECKING:
    from fedmon.common.plan_source import Plan, PlanSource

ENVELOPE_BYTES = 2_048
MAX_DESCRIPTION = 16_384


class StatusByUrl(TrainingPlanStatus, frozen=True, kw_only=True, tag="training-plan-status"):
    """Ask for the status of the plan at a URL, for a wire that knows plans by their URL alone."""

    url: str


def submission(
    plan: Plan,
    *,
    description: str,
    repository: RepositorySettings,
    inline: bool = True,
    datasets: Sequence[str] | None = None,
    purpose: str = "",
) -> dict[str, Any]:
    """Return the fields of an approval request; uploads a plan that does not fit into a message, or may not.

    Raises InvalidInputError for a plan that is not readable Python, or must be uploaded where no repository is set.
    """
    from fedmon.common.plan_source import load_source

    for name, given in {"description": description, "purpose": purpose}.items():
        if len(given) > MAX_DESCRIPTION:
            raise InvalidInputError(f"{name} has {len(given)} characters; {MAX_DESCRIPTION} are allowed")
    source = load_source(plan)
    fields: dict[str, Any] = {
        "name": source.name,
        "description": description,
        "datasets": datasets,
        "purpose": purpose,
        "sha256": source.sha256,
        "size_bytes": len(source.source),
    }
    text = source.source.decode()
    if not inline:
        return fields | {"url": _by_url(source, repository)}
    if len(msgspec.json.encode([text, description, purpose, datasets])) + ENVELOPE_BYTES <= MAX_PAYLOAD_BYTES:
        return fields | {"source": text}
    why = f"plan {source.name!r} has {len(source.source)} bytes and does not fit into a message of {MAX_PAYLOAD_BYTES}"
    return fields | {"url": uploaded(source.source, repository, why=why)}


def question(
    plan: Plan, *, repository: RepositorySettings, inline: bool = True
) -> tuple[type[TrainingPlanStatus], dict[str, Any]]:
    """Return the request for a plan's status, and its fields; uploads the plan where only a URL can name it.

    It is uploaded each time, as repositories forget files. Raises InvalidInputError as `submission` does.
    """
    from fedmon.common.plan_source import load_source

    source = load_source(plan)
    if inline:
        return TrainingPlanStatus, {"sha256": source.sha256}
    return StatusByUrl, {"sha256": source.sha256, "url": _by_url(source, repository)}


def _by_url(source: PlanSource, repository: RepositorySettings) -> str:
    return uploaded(source.source, repository, why=f"nodes of Fed-BioMed know plan {source.name!r} by a URL only")


def uploaded(content: bytes, repository: RepositorySettings, *, why: str) -> str:
    """Upload a file and return its URL. Raises RepositoryError; without a repository InvalidInputError says ``why``."""
    from fedmon.common.http import upload

    if repository.url is None:
        raise InvalidInputError(
            f"{why}: set the file repository, `url` in [repository] of researcher.toml or FEDMON_REPOSITORY_URL"
        )
    return upload(content, repository, deadline_s=transfer_s(len(content)))


def transfer_s(size_bytes: int) -> float:
    """Return how long the transfer of a file may take: a minute, and a second for each MB."""
    return 60.0 + size_bytes / 1e6
