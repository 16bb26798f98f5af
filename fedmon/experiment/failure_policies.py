"""What failures mean for an experiment as its documents say it, and the failure managers that see to it."""

from __future__ import annotations

import copy
from collections.abc import Container
from pathlib import Path

from fedmon.experiment.document.description import Description, FailurePolicy, QuorumDescription
from fedmon.experiment.document.files import read, write
from fedmon.experiment.errors import InvalidPolicyError
from fedmon.experiment.failure import FailureManager, OptionalFailures, QuorumFailures
from fedmon.experiment.following import DOCUMENT


def manager_of(policy: FailurePolicy | None) -> FailureManager:
    """Return the failure manager of a policy; null: ours, for which those count that are critical."""
    if policy is None or policy.policy == "critical":
        return FailureManager()
    if policy.policy == "optional":
        return OptionalFailures()
    made = QuorumFailures()
    for quorum in policy.quorums:
        made.add(quorum.at_least, quorum.group, rtype=quorum.rtype)
    return made


def policy_of(manager: FailureManager, known: Container[int]) -> FailurePolicy | None:
    """Return what documents say of a failure manager, with those members that there are; null for ours and own ones."""
    if type(manager) is OptionalFailures:
        return FailurePolicy(policy="optional")
    if type(manager) is not QuorumFailures:
        return None
    quorums = []
    for quorum in manager.quorums:
        group = tuple(sorted(guid for guid in quorum.guids if guid in known))
        if group or quorum.rtype is not None:
            at_least = quorum.at_least if quorum.rtype is not None else min(quorum.at_least, len(group))
            quorums.append(QuorumDescription(at_least=at_least, group=group, rtype=quorum.rtype))
    return FailurePolicy(policy="quorum", quorums=tuple(quorums))


def fresh_copy(manager: FailureManager) -> FailureManager:
    """Return a failure manager of the same kind for another run. Raises InvalidPolicyError where there can be none."""
    try:
        return copy.copy(manager)
    except Exception as error:
        raise InvalidPolicyError(
            f"the failure manager {type(manager).__name__} cannot be copied for each run: {error}; give it a __copy__"
        ) from error


def keep_policy(description: Description, run_dir: Path) -> None:
    """Keep in the folder of a run what failures mean, for who takes it up again. Raises StorageError."""
    write(description, run_dir / DOCUMENT)


def policy_left_in(run_dir: Path) -> FailureManager:
    """Return a failure manager as the document in the folder of a run says. Raises DescriptionError, StorageError."""
    path = run_dir / DOCUMENT
    return manager_of(read(path).failures if path.is_file() else None)
