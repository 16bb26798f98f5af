"""What failures mean, in TOML: the table ``[failures]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmon.experiment.document.condition_text import member_named
from fedmon.experiment.document.description import FailurePolicy, QuorumDescription
from fedmon.experiment.document.errors import DescriptionError
from fedmon.experiment.document.toml_tables import FailuresTable, QuorumTable, as_table

_WHERE = "[failures]"


def failures_from(raw: Mapping[str, Any], names: Mapping[str, int]) -> FailurePolicy:
    """Return what failures mean; members of a quorum are names or guids. Raises DescriptionError."""
    table: FailuresTable = as_table(FailuresTable, raw, where=_WHERE)
    quorums = [as_table(QuorumTable, each, where=f"{_WHERE}: quorums") for each in table.quorums]
    if table.at_least is not None:
        quorums.insert(0, QuorumTable(at_least=table.at_least, of=table.of, rtype=table.rtype))
    elif table.of or table.rtype is not None:
        raise DescriptionError(f"{_WHERE}: of and rtype say whom a quorum is of: say with at_least how many it takes")
    made = tuple(
        QuorumDescription(
            at_least=each.at_least,
            group=tuple(member_named(member, names, where=_WHERE) for member in each.of),
            rtype=each.rtype,
        )
        for each in quorums
    )
    return FailurePolicy(policy=table.policy, quorums=made)


def failures_table(policy: FailurePolicy, names: Mapping[int, str]) -> dict[str, Any]:
    """Return the table of a policy as plain values."""
    quorums = [_quorum(each, names) for each in policy.quorums]
    return {"policy": policy.policy, **(quorums[0] if len(quorums) == 1 else {"quorums": quorums} if quorums else {})}


def _quorum(quorum: QuorumDescription, names: Mapping[int, str]) -> dict[str, Any]:
    whom = {"of": [names.get(guid, guid) for guid in quorum.group]} if quorum.group else {"rtype": quorum.rtype}
    return {"at_least": quorum.at_least, **whom}
