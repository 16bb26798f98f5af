"""Inputs of a run, checked before sending: arguments as JSON values, inputs as a parcel, the digest of its plan."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.messages import ApprovalReply
from fedmon.common.wire.runs import Parcel, RunLimits
from fedmon.plan.values import InvalidValuesError, ValuesWalk, json_text, spelled
from fedmon.researcher.asking.submission import ENVELOPE_BYTES
from fedmon.researcher.runs.handle import SLOWEST_BYTES_S

if TYPE_CHECKING:
    from fedmon.common.plan_source import Plan

INLINE_BYTES = 60_000
"""Larger inputs go through the repository if there is one, as large messages hold up the others."""
MAX_ARGUMENTS_BYTES = 65_536
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def digest_of(plan: Plan | ApprovalReply) -> str:
    """Return the digest of a plan: of its source, of an answer to `approve`, or of a text ``sha256:...``.

    Raises InvalidPlanError if it is no plan.
    """
    if isinstance(plan, ApprovalReply):
        return plan.sha256
    if isinstance(plan, str) and plan.startswith("sha256:"):
        matched = _DIGEST.fullmatch(plan)
        if matched is None:
            raise InvalidInputError(f"plan {plan[:100]!r} is not a digest: write sha256: and 64 digits of 0-9 and a-f")
        return matched[1]
    from fedmon.common.plan_source import load_source

    return load_source(plan).sha256


def checked_arguments(arguments: object) -> dict[str, Any]:
    """Return arguments as plain JSON values. Raises InvalidInputError with the place and the reason."""
    walk = ValuesWalk(max_bytes=None)
    try:
        text = json_text(walk.named({} if arguments is None else arguments)).encode()
    except InvalidValuesError as error:
        raise InvalidInputError(f"args: {error}") from None
    if walk.arrays:
        raise InvalidInputError(f"args: {spelled(walk.places[0])}: an array; arrays are inputs")
    if len(text) > MAX_ARGUMENTS_BYTES:
        raise InvalidInputError(
            f"args take {len(text)} bytes, and {MAX_ARGUMENTS_BYTES} are allowed: pass large values as inputs"
        )
    plain: dict[str, Any] = msgspec.json.decode(text)
    return plain


def checked_limits(limits: object) -> RunLimits:
    """Return limits as the wire has them. Raises InvalidInputError naming the wrong one, and those there are."""
    if limits is None or isinstance(limits, RunLimits):
        return limits or RunLimits()
    known = RunLimits.__struct_fields__
    if not isinstance(limits, Mapping) or (unknown := [name for name in limits if name not in known]):
        named = "limits" if not isinstance(limits, Mapping) else f"limits.{unknown[0]}"
        raise InvalidInputError(f"{named} is not known: give a mapping of {', '.join(known)}")
    try:
        return msgspec.convert(dict(limits), RunLimits)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"limits: {error}") from None


def packed(inputs: object, repository: RepositorySettings, *, beside_bytes: int = ENVELOPE_BYTES) -> Parcel | None:
    """Return inputs as a parcel, inside the message while it fits beside other things, else uploaded.

    Raises InvalidInputError for values that are neither JSON nor plain arrays, or too large where no repository is set,
    and RepositoryError.
    """
    if inputs is None:
        return None
    if not isinstance(inputs, Mapping):
        raise InvalidInputError(f"inputs is {type(inputs).__name__}: give a mapping of names to JSON values and arrays")
    if not inputs:
        return None
    from fedmon.plan import parcels

    parcel = parcels.pack(inputs)
    stream = io.BytesIO()
    parcel.write(stream)
    content = stream.getbuffer()
    about = Parcel(format=parcel.format, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    inline = _inline(about, content)
    most_bytes = INLINE_BYTES if repository.url else MAX_PAYLOAD_BYTES
    if inline is not None and len(msgspec.json.encode(inline)) + beside_bytes <= most_bytes:
        return inline
    if repository.url is None:
        raise InvalidInputError(
            f"inputs take {len(content)} bytes and do not fit into a message of {MAX_PAYLOAD_BYTES}: set the file "
            "repository, `url` in [repository] of researcher.toml or FEDMON_REPOSITORY_URL"
        )
    from fedmon.common.http import upload_from

    patience_s = 60.0 + len(content) / SLOWEST_BYTES_S
    del content
    url = upload_from(stream, repository, sha256=about.sha256, deadline_s=patience_s)
    return msgspec.structs.replace(about, url=url)


def _inline(about: Parcel, content: memoryview) -> Parcel | None:
    if len(content) > MAX_PAYLOAD_BYTES:
        return None
    if about.format == "json":
        return msgspec.structs.replace(about, json=bytes(content).decode())
    return msgspec.structs.replace(about, base64=base64.b64encode(content).decode())
