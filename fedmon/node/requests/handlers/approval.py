"""`approval`: take in the exact bytes of a training plan for the owner to decide about."""

from __future__ import annotations

from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Approval, ApprovalReply
from fedmon.node.requests.handlers.envelope import echo
from fedmon.node.services import Services


class BytesElsewhereError(Exception):
    """The plan's bytes are not in the message: they must be fetched before it can be answered.

    ``sha256`` is the digest that they must have, null where nobody said.
    """

    def __init__(self, url: str, *, sha256: str | None) -> None:
        super().__init__(url)
        self.url, self.sha256 = url, sha256


def answer(request: Approval, services: Services) -> Reply:
    """Keep bytes and record, then tell where the plan stands; runs inside the transaction of its effect.

    Raises BytesElsewhereError when the message names a URL, FedmonError when the plan cannot be taken in.
    """
    if (request.source is None) == (request.url is None):
        raise InvalidInputError("an approval carries exactly one of `source` and `url`")
    if request.source is None:
        raise BytesElsewhereError(request.url or "", sha256=request.sha256)
    return take_in(request, request.source.encode(), services)


def take_in(request: Approval, source: bytes, services: Services) -> ApprovalReply:
    """Keep bytes and record; have a worker read the plan once both are committed. Raises FedmonError."""
    plan = services.plans.request(request, source)
    services.audit.record(
        "approval-requested",
        plan_id=plan.plan_id,
        sha256=plan.sha256,
        name=plan.name,
        description=plan.description,
        researcher=request.researcher_id,
    )
    if not plan.checked:
        services.database.after_commit(lambda: _check(plan.sha256, services))
    return ApprovalReply(
        plan_id=plan.plan_id,
        sha256=plan.sha256,
        status=plan.status,
        note=plan.note,
        **echo(request, services.node_id),
    )


def fetched(request: Approval, source: bytes | FedmonError, services: Services) -> ApprovalReply:
    """Continue with what was fetched. Raises the error that fetching ended with."""
    if isinstance(source, FedmonError):
        raise source
    return take_in(request, source, services)


def _check(sha256: str, services: Services) -> None:
    services.check_plan(sha256)
