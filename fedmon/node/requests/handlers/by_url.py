"""Training plans that only a URL names: fetched first, and known by the digest of what came."""

from __future__ import annotations

import hashlib
from typing import Any

from fedmon.common.errors import ConflictError, FedmonError, InvalidInputError
from fedmon.common.http import RepositoryError
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import Approval, Error, ErrorCode, TrainingPlanStatus
from fedmon.node.requests.handlers import approval, plan_status
from fedmon.node.requests.handlers.approval import BytesElsewhereError
from fedmon.node.requests.handlers.envelope import echo
from fedmon.node.services import Services

SHOWN_DIGEST = 12
HTTP_OK = 200


class ApprovalByUrl(Request, frozen=True, kw_only=True, tag="approval"):
    """Ask the owner to approve the plan that lies at a URL."""

    url: str
    description: str


class StatusByUrl(Request, frozen=True, kw_only=True, tag="training-plan-status"):
    """Ask where the plan stands that lies at a URL; ``job_id`` is the asker's own word for it."""

    url: str
    job_id: str


class PlanError(Error, frozen=True, kw_only=True, tag="error"):
    """The plan was not fetched, or not taken in; ``http_status`` is how its download ended, 0 where there was none."""

    http_status: int


def ask_for(request: ApprovalByUrl | StatusByUrl, _services: Services) -> Reply:
    """Have the bytes fetched."""
    raise BytesElsewhereError(request.url, sha256=None)


def take_in(request: ApprovalByUrl, source: bytes | FedmonError, services: Services) -> Reply:
    """Keep what was fetched for the owner to decide about, or tell that it is no plan. Raises FedmonError."""
    if isinstance(source, FedmonError):
        return _not_fetched(request, source, services)
    digest = hashlib.sha256(source).hexdigest()
    known = Approval(
        name=f"plan-{digest[:SHOWN_DIGEST]}",
        description=request.description,
        sha256=digest,
        size_bytes=len(source),
        url=request.url,
        **_envelope(request),
    )
    try:
        with services.database.transaction():
            return approval.take_in(known, source, services)
    except (InvalidInputError, ConflictError) as problem:
        return PlanError(
            code=ErrorCode.FAILED, reason=str(problem), http_status=HTTP_OK, **echo(request, services.node_id)
        )


def tell_status(request: StatusByUrl, source: bytes | FedmonError, services: Services) -> Reply:
    """Tell where a plan stands that has exactly the bytes that were fetched."""
    if isinstance(source, FedmonError):
        return _not_fetched(request, source, services)
    known = TrainingPlanStatus(sha256=hashlib.sha256(source).hexdigest(), **_envelope(request))
    return plan_status.answer(known, services)


def _envelope(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in Request.__struct_fields__}


def _not_fetched(request: Request, problem: FedmonError, services: Services) -> PlanError:
    return PlanError(
        code=ErrorCode.FAILED,
        reason=str(problem),
        http_status=problem.http_status if isinstance(problem, RepositoryError) else 0,
        **echo(request, services.node_id),
    )
