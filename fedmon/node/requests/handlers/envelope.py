"""The part of a reply that echoes its request."""

from __future__ import annotations

from typing import TypedDict

from fedmon.common.wire.envelope import Request
from fedmon.common.wire.messages import Error, ErrorCode


class Echo(TypedDict):
    """The fields that every reply takes over from its request."""

    node_id: str
    researcher_id: str
    id: str
    session: str
    sequence: int


def echo(request: Request, node_id: str) -> Echo:
    """Return the envelope of the reply to a request."""
    return Echo(
        node_id=node_id,
        researcher_id=request.researcher_id,
        id=request.id,
        session=request.session,
        sequence=request.sequence,
    )


def error(request: Request, node_id: str, code: ErrorCode, reason: str) -> Error:
    """Return the error reply to a request."""
    return Error(code=code, reason=reason, **echo(request, node_id))
