"""The messages of Fed-BioMed 4.4 as dictionaries, checked field by field, as its scripts make and read them.

A message is refused, with InvalidMessageError, when it goes the wrong way, when its command is missing or unknown, and
when a field is missing, unknown or of another type.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire import fedbiomed4_messages as wire
from fedmon.common.wire.fedbiomed4 import FB300, FB301
from fedmon.common.wire.messages import ErrorCode


class ErrorNumbers(enum.StrEnum):
    """The numbers of errors that a node of version 4.4 sends, as their text on the wire."""

    FB300 = FB300
    FB301 = FB301
    FB313 = "FB313: no dataset matching request"
    FB319 = "FB319: Command not found error"
    FB322 = "FB322: Dataset registration error"


Kinds = Mapping[str, tuple[str, type[wire.WireMessage]]]

REQUESTS: Kinds = MappingProxyType(
    {
        "ping": ("PingRequest", wire.PingRequest),
        "list": ("ListRequest", wire.ListRequest),
        "search": ("SearchRequest", wire.SearchRequest),
        "approval": ("ApprovalRequest", wire.ApprovalRequest),
        "training-plan-status": ("TrainingPlanStatusRequest", wire.StatusRequest),
        "train": ("TrainRequest", wire.TrainRequest),
        "secagg": ("SecaggRequest", wire.SecaggRequest),
        "secagg-delete": ("SecaggDeleteRequest", wire.SecaggDeleteRequest),
    }
)
"""What a researcher sends, by command: the historic name of the message, and its fields."""

REPLIES: Kinds = MappingProxyType(
    {
        "pong": ("PingReply", wire.PingReply),
        "list": ("ListReply", wire.WireListReply),
        "search": ("SearchReply", wire.WireSearchReply),
        "approval": ("ApprovalReply", wire.WireApprovalReply),
        "training-plan-status": ("TrainingPlanStatusReply", wire.StatusReply),
        "train": ("TrainReply", wire.TrainReply),
        "secagg": ("SecaggReply", wire.SecaggReply),
        "secagg-delete": ("SecaggDeleteReply", wire.SecaggDeleteReply),
        "add_scalar": ("AddScalarReply", wire.WireScalar),
        "log": ("LogMessage", wire.Log),
        "error": ("ErrorMessage", wire.ErrorMessage),
    }
)
"""What a node sends, by command: the historic name of the message, and its fields."""


class HistoricMessage:
    """One checked message; immutable. Its fields are read by `get_param`, or as attributes."""

    __slots__ = ("_kind", "_params")

    _kind: str
    _params: dict[str, Any]

    def __init__(self, kind: str, params: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_params", dict(params))

    @property
    def kind(self) -> str:
        """The name of the message, such as ``PingReply``."""
        return self._kind

    def get_param(self, param: str) -> Any:
        """Return the value of one field. Raises InvalidMessageError naming the fields there are."""
        if param not in self._params:
            raise InvalidMessageError(f"{self._kind} has no field {param!r}; it has {', '.join(self._params)}")
        return self._params[param]

    def get_dict(self) -> dict[str, Any]:
        """Return all fields in a dictionary of the caller's own."""
        return dict(self._params)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._params:
            raise AttributeError(f"{type(self).__name__} {self._kind!r} has no field {name!r}")
        return self._params[name]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a message is immutable: {name!r} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a message is immutable: {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HistoricMessage):
            return NotImplemented
        return (self._kind, self._params) == (other._kind, other._params)

    __hash__ = None  # type: ignore[assignment]  # its fields hold lists

    def __reduce__(self) -> tuple[type[HistoricMessage], tuple[str, dict[str, Any]]]:
        return HistoricMessage, (self._kind, self._params)

    def __repr__(self) -> str:
        return f"{self._kind}({', '.join(f'{name}={value!r}' for name, value in self._params.items())})"


class ResearcherMessages:
    """Makes checked messages of dictionaries, as a researcher sees them: requests go out, replies come in."""

    INCOMING: ClassVar[Kinds] = REPLIES
    OUTGOING: ClassVar[Kinds] = REQUESTS

    @classmethod
    def format_incoming_message(cls, params: dict[str, Any]) -> HistoricMessage:
        """Check what arrived. Raises InvalidMessageError."""
        return _checked(params, cls.INCOMING, {}, what=f"{cls.__name__}: incoming message")

    @classmethod
    def format_outgoing_message(cls, params: dict[str, Any]) -> HistoricMessage:
        """Check what is to be sent, and add the protocol version to it. Raises InvalidMessageError."""
        version = {"protocol_version": wire.PROTOCOL_VERSION}
        return _checked(params, cls.OUTGOING, version, what=f"{cls.__name__}: outgoing message")


def _checked(params: Any, allowed: Kinds, added: dict[str, str], *, what: str) -> HistoricMessage:
    if not isinstance(params, dict):
        raise InvalidMessageError(f"{what} is a {type(params).__name__}; give a dictionary")
    params = params | added
    for name in ("command", "protocol_version"):
        if name not in params:
            raise InvalidMessageError(f"{what} has no field {name!r}")
    command = params["command"]
    if not isinstance(command, str) or command not in allowed:
        raise InvalidMessageError(
            f"{what}: command {str(command)[:64]!r} is not one of {', '.join(sorted(allowed))}",
            code=ErrorCode.UNKNOWN_COMMAND.value,
        )
    kind, fields = allowed[command]
    try:
        message = msgspec.convert(params, fields)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise InvalidMessageError(f"{what} {kind}: {error}") from None
    given = {name: value for name, value in msgspec.structs.asdict(message).items() if value is not msgspec.UNSET}
    return HistoricMessage(kind, given | {"command": command})
