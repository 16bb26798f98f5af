"""Failure managers: whether an experiment continues after the failure of a resource."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Container, Iterable

from fedmon.experiment.check.graph import titled
from fedmon.experiment.document.description import FailurePolicy, QuorumDescription
from fedmon.experiment.engine import Engine
from fedmon.experiment.errors import ExperimentOverError, InvalidPolicyError, as_reason
from fedmon.experiment.events import Leveled
from fedmon.experiment.resource import Experiment
from fedmon.experiment.situation import Resource
from fedmon.experiment.states import FailureLevel

logger = logging.getLogger(__name__)


class FailureManager:
    """Ends the experiment if a critical resource fails.

    Subclasses override `eval_failure`, and call `give_up`, at any time and in any thread; `eval_failure` may also set
    ``_failure_level`` and ``_abort``, as in NEPI. A manager belongs to one experiment at a time.
    """

    _failure_level = FailureLevel.OK
    _abort = False
    _reason = ""
    _ec: weakref.ref[Experiment] | None = None

    def set_ec(self, ec: Experiment, level: FailureLevel = FailureLevel.OK, reason: str = "") -> None:
        """Take over an experiment, at the failure level that it has."""
        self._failure_level, self._abort, self._reason = level, level is not FailureLevel.OK, reason
        self._ec = weakref.ref(ec)

    @property
    def ec(self) -> Experiment:
        """The experiment. Raises ExperimentOverError if there is none, or it was deleted."""
        found = None if self._ec is None else self._ec()
        if found is None:
            raise ExperimentOverError(f"{type(self).__name__} has no experiment, or it was deleted")
        return found

    @property
    def failure_level(self) -> FailureLevel:
        """The level of the worst failure."""
        return self._failure_level

    @property
    def abort(self) -> bool:
        """Whether the experiment is to end."""
        return self._abort or self._failure_level is not FailureLevel.OK

    @property
    def reason(self) -> str:
        """Why the experiment is to end; "" while it is not."""
        return self._reason

    def eval_failure(self, guid: int) -> None:
        """Judge the failure of a resource; only the first one that ends the experiment counts."""
        seen = _failed(self.ec, guid)
        if seen is not None and seen.critical:
            self.give_up(f"{seen.title}, which is critical, failed{seen.reason and f': {seen.reason}'}")

    def give_up(self, reason: object) -> None:
        """End the experiment, because it needs the resources that failed; without one, do nothing."""
        if self._failure_level is FailureLevel.OK:
            self._end(FailureLevel.RM_FAILURE, as_reason(reason) or f"{type(self).__name__} gives up")

    def set_ec_failure(self, reason: object = "") -> None:
        """Report a failure of the controller itself; without one, do nothing."""
        self._end(FailureLevel.EC_FAILURE, as_reason(reason) or self._reason or "the controller failed")

    def _end(self, level: FailureLevel, reason: str) -> None:
        ec = None if self._ec is None else self._ec()
        if ec is None:
            return
        logger.warning("the experiment gives up: %s", reason)
        self._failure_level, self._abort, self._reason = level, True, reason
        ec.engine.note(Leveled(level=level, reason=reason))


class OptionalFailures(FailureManager):
    """Lets the experiment continue after any failure."""

    def eval_failure(self, guid: int) -> None:
        """Log the failure."""
        logger.warning("%s failed, and the experiment continues", titled(guid, self.ec.engine.state))


class QuorumFailures(FailureManager):
    """Lets the experiment continue while k of n resources have not failed.

    A failure outside of all quorums ends it if the resource is critical. Quorums may be added while it runs.
    """

    def __init__(self, at_least: int | None = None, guids: Iterable[int] = (), *, rtype: str | None = None) -> None:
        self._quorums: tuple[QuorumDescription, ...] = ()
        if at_least is not None:
            self.add(at_least, guids, rtype=rtype)

    @property
    def quorums(self) -> tuple[QuorumDescription, ...]:
        """The quorums: ``at_least`` of ``group``, or of all of the type ``rtype``."""
        return self._quorums

    def add(self, at_least: int, guids: Iterable[int] = (), *, rtype: str | None = None) -> None:
        """Add a quorum: ``at_least`` of ``guids``, or of the resources of a type. Raises InvalidPolicyError."""
        try:
            quorum = QuorumDescription(at_least=at_least, group=tuple(sorted(set(guids))), rtype=rtype)
        except ValueError as error:
            raise InvalidPolicyError(str(error)) from None
        self._quorums = (*self._quorums, quorum)

    def eval_failure(self, guid: int) -> None:
        """End the experiment if a quorum is lost."""
        groups = [(quorum.at_least, members) for quorum in self._quorums if guid in (members := self._members(quorum))]
        for at_least, members in groups:
            left, who = sum(_failed(self.ec, each) is None for each in members), titled(guid, self.ec.engine.state)
            if left < at_least:
                self.give_up(f"{who} failed, and {left} of {len(members)} are left, but {at_least} must be")
        if not groups:
            super().eval_failure(guid)

    def _members(self, quorum: QuorumDescription) -> tuple[int, ...]:
        if quorum.rtype is None:
            return quorum.group
        return tuple(guid for guid in self.ec.resources if self.ec.get_resource(guid).is_rm_instance(quorum.rtype))


def judge(manager: FailureManager, engine: Engine, guid: int) -> None:
    """Have a manager judge a failure, and note its level.

    If a user's manager raises, that is logged, and `FailureManager` judges instead.
    """
    try:
        manager.eval_failure(guid)
        level, aborts, reason = manager.failure_level, manager.abort, as_reason(manager.reason)
    except BaseException:  # a user's code, which may even call sys.exit
        logger.exception("the failure manager %s failed; judged without it", type(manager).__name__)
        with contextlib.suppress(ExperimentOverError):
            FailureManager.eval_failure(manager, guid)
        # Not by its properties, which may have raised.
        level, aborts, reason = manager._failure_level, manager._abort, as_reason(manager._reason)  # noqa: SLF001
    if level is FailureLevel.OK and aborts:
        level = FailureLevel.RM_FAILURE
    reason = "" if level is FailureLevel.OK else reason or f"{type(manager).__name__} aborts"
    engine.note(Leveled(level=level, reason=reason, guid=guid))


def _failed(ec: Experiment, guid: int) -> Resource | None:
    """Return a resource that FAILED, released or not; None for any other, and for one that was removed."""
    seen = ec.engine.state.resources.get(guid)
    return seen if seen is not None and seen.has_failed else None


def manager_of(policy: FailurePolicy | None) -> FailureManager:
    """Return the failure manager of a document."""
    if policy is None or policy.policy == "critical":
        return FailureManager()
    if policy.policy == "optional":
        return OptionalFailures()
    made = QuorumFailures()
    for quorum in policy.quorums:
        made.add(quorum.at_least, quorum.group, rtype=quorum.rtype)
    return made


def policy_of(manager: FailureManager, known: Container[int]) -> FailurePolicy | None:
    """Return a failure manager as documents hold it, without members that were removed.

    None for `FailureManager`, which is the default and judges without quorums too, and for a user's.
    """
    if type(manager) is OptionalFailures:
        return FailurePolicy(policy="optional")
    if type(manager) is not QuorumFailures:
        return None
    quorums = []
    for quorum in manager.quorums:
        group = tuple(guid for guid in quorum.group if guid in known)
        if quorum.rtype is not None:
            quorums.append(quorum)
        elif group:
            quorums.append(QuorumDescription(at_least=min(quorum.at_least, len(group)), group=group))
    return FailurePolicy(policy="quorum", quorums=tuple(quorums)) if quorums else None
