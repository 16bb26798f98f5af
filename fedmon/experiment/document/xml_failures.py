"""What failures mean, in XML: ``<failures policy="quorum"><quorum at_least="2" group="[1, 2, 3]"/></failures>``."""

from __future__ import annotations

from typing import cast, get_args

from fedmon.experiment.document.description import FailurePolicy, Policy, QuorumDescription
from fedmon.experiment.document.errors import DescriptionError
from fedmon.experiment.document.values import integer
from fedmon.experiment.document.xml_conditions import group_of
from fedmon.experiment.document.xml_elements import Element


def failures_of(root: Element) -> FailurePolicy | None:
    """Return what failures mean; null where it is not said. Raises DescriptionError."""
    for element in root.each("failures"):
        policy = element.needed("policy", where="failures")
        if policy not in get_args(Policy):
            raise DescriptionError(f"failures: no policy {policy[:60]!r}; one of: {', '.join(get_args(Policy))}")
        return FailurePolicy(policy=cast("Policy", policy), quorums=tuple(map(_quorum, element.each("quorum"))))
    return None


def attributes_of(quorum: QuorumDescription) -> dict[str, str | None]:
    """Return a quorum as XML attributes."""
    group = f"[{', '.join(map(str, quorum.group))}]" if quorum.group else None
    return {"at_least": str(quorum.at_least), "group": group, "rtype": quorum.rtype}


def _quorum(element: Element) -> QuorumDescription:
    where = "failures: a quorum"
    return QuorumDescription(
        at_least=integer(element.needed("at_least", where=where), where=where),
        group=group_of(element.attributes["group"], where=where) if "group" in element.attributes else (),
        rtype=element.attributes.get("rtype"),
    )
