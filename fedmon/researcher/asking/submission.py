"""Submission of a training plan: inside the message while it fits, else through the repository."""

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
_BY_URL = "nodes of Fed-BioMed know plan {name!r} by a URL only"


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
        return fields | {"url": _uploaded(source, repository, why=_BY_URL)}
    if len(msgspec.json.encode([text, description, purpose, datasets])) + ENVELOPE_BYTES <= MAX_PAYLOAD_BYTES:
        return fields | {"source": text}
    why = f"plan {{name!r}} has {len(source.source)} bytes and does not fit into a message of {MAX_PAYLOAD_BYTES}"
    return fields | {"url": _uploaded(source, repository, why=why)}


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
    return StatusByUrl, {"sha256": source.sha256, "url": _uploaded(source, repository, why=_BY_URL)}


def _uploaded(source: PlanSource, repository: RepositorySettings, *, why: str) -> str:
    """Upload a plan and return its URL; where no repository is set the error says ``why`` one is needed."""
    from fedmon.common.http import upload

    if repository.url is None:
        raise InvalidInputError(
            f"{why.format(name=source.name)}: set the file repository, `url` in [repository] of researcher.toml or "
            "FEDMON_REPOSITORY_URL"
        )
    return upload(source.source, repository)
