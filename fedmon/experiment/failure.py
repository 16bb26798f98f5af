"""What failures mean for an experiment: a failure manager looks at each, and says whether the experiment goes on."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import threading
import weakref
from collections.abc import Container, Iterable
from pathlib import Path

import msgspec

from fedmon.experiment.document.description import FailurePolicy, QuorumDescription
from fedmon.experiment.document.files import read
from fedmon.experiment.engine import Engine
from fedmon.experiment.errors import ExperimentOverError, InvalidPolicyError, as_reason, told
from fedmon.experiment.events import Leveled
from fedmon.experiment.journal import DOCUMENT
from fedmon.experiment.resource import Experiment
from fedmon.experiment.states import FailureLevel, ResourceState

logger = logging.getLogger(__name__)


class FailureManager:
    """Ends the experiment when a critical resource fails.

    Own managers override `eval_failure`, and call `give_up` or set ``_failure_level`` and ``_abort``; they may do so at
    any time and in any thread, and the experiment hears of it. One manager belongs to one experiment at a time.
    """

    _failure_level = FailureLevel.OK
    _abort = False
    _reason = ""
    _ec: weakref.ref[Experiment] | None = None

    def set_ec(self, ec: Experiment) -> None:
        """Take an experiment over; what was before it is forgotten."""
        self._ec = None  # nobody hears of what was before
        self._failure_level, self._abort, self._reason = FailureLevel.OK, False, ""
        self._ec = weakref.ref(ec)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in ("_failure_level", "_abort") and not _here.is_judging:
            self._tell()

    def _tell(self) -> None:
        found = None if self._ec is None else self._ec()
        if found is not None:
            heed(self, found.engine)

    def take_up(self, level: FailureLevel, reason: str) -> None:
        """Begin with what was judged before, in a process that died."""
        ec, self._ec = self._ec, None
        self._failure_level, self._abort, self._reason = level, level is not FailureLevel.OK, reason
        self._ec = ec

    @property
    def ec(self) -> Experiment:
        """The experiment. Raises ExperimentOverError where it has none, or that is no more."""
        found = None if self._ec is None else self._ec()
        if found is None:
            raise ExperimentOverError(f"the experiment of {type(self).__name__} is no more, or never was")
        return found

    @property
    def failure_level(self) -> FailureLevel:
        """How bad it is."""
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
        """Look at a resource that failed; only the first failure that ends the experiment counts."""
        if self._failure_level is FailureLevel.OK and is_failed(self.ec, guid) and is_critical(self.ec, guid):
            self.give_up(f"{name_of(self.ec, guid)}, which is critical, failed{_why(self.ec, guid)}")

    def give_up(self, reason: object) -> None:
        """Have the experiment end: resources failed that it cannot do without."""
        if self._failure_level is FailureLevel.OK:
            self._reason = as_reason(reason) or f"{type(self).__name__} gives up"
            self._failure_level, self._abort = FailureLevel.RM_FAILURE, True
            logger.warning("the experiment gives up: %s", self._reason)
            self._tell()

    def set_ec_failure(self, reason: object = "") -> None:
        """Note that the controller itself failed."""
        self._reason = as_reason(reason) or self._reason or "the controller failed"
        self._failure_level, self._abort = FailureLevel.EC_FAILURE, True
        self._tell()


class OptionalFailures(FailureManager):
    """Lets the experiment go on, whoever fails."""

    def eval_failure(self, guid: int) -> None:
        """Note it, and go on."""
        logger.warning("%s failed, and the experiment goes on", name_of(self.ec, guid))


class Quorum(msgspec.Struct, frozen=True, kw_only=True):
    """How many resources must not fail: ``at_least`` of ``guids``, or of all of the type ``rtype``."""

    at_least: int
    guids: frozenset[int] = frozenset()
    rtype: str | None = None


class QuorumFailures(FailureManager):
    """Lets the experiment go on while enough resources are left: k of n.

    Resources of no quorum are critical or not, as their attribute says. Quorums may be added while it runs.
    """

    def __init__(self, at_least: int | None = None, guids: Iterable[int] = (), *, rtype: str | None = None) -> None:
        self._quorums: tuple[Quorum, ...] = ()
        self._lock = threading.Lock()
        if at_least is not None:
            self.add(at_least, guids, rtype=rtype)

    @property
    def quorums(self) -> tuple[Quorum, ...]:
        """How many of whom must be left."""
        return self._quorums

    def add(self, at_least: int, guids: Iterable[int] = (), *, rtype: str | None = None) -> None:
        """Have ``at_least`` of some resources kept: of ``guids``, or of a type. Raises InvalidPolicyError."""
        members = frozenset(guids)
        if at_least < 1 or type(at_least) is not int:
            raise InvalidPolicyError(f"a quorum needs at least 1 resource, not {at_least!r}")
        if bool(members) is (rtype is not None):
            raise InvalidPolicyError("a quorum is of guids or of a type: name one of the two")
        if members and at_least > len(members):
            raise InvalidPolicyError(f"a quorum of {at_least} of {len(members)} resources can never be there")
        with self._lock:
            self._quorums = (*self._quorums, Quorum(at_least=at_least, guids=members, rtype=rtype))

    def eval_failure(self, guid: int) -> None:
        """End the experiment where a quorum is lost."""
        if self._failure_level is not FailureLevel.OK or not is_failed(self.ec, guid):
            return
        mine = [quorum for quorum in self._quorums if guid in self._members(quorum)]
        for quorum in mine:
            members = self._members(quorum)
            left = [each for each in members if not is_failed(self.ec, each)]
            if len(left) < quorum.at_least:
                self.give_up(
                    f"{name_of(self.ec, guid)} failed, and {len(left)} of {len(members)} are left, "
                    f"where {quorum.at_least} must be"
                )
        if not mine:
            super().eval_failure(guid)

    def _members(self, quorum: Quorum) -> frozenset[int]:
        if quorum.rtype is None:
            return quorum.guids
        return frozenset(guid for guid in self.ec.resources if self.ec.get_resource(guid).is_rm_instance(quorum.rtype))


class _Here(threading.local):
    """What this thread is in: `eval_failure`, whose settings count when it is through, or `heed`."""

    is_judging = is_heeding = False


_here = _Here()


def judge(manager: FailureManager, engine: Engine, guid: int) -> None:
    """Have a manager look at a resource that failed, and note how bad it finds that, so that it is judged once.

    An own manager that raises is logged, and the failure judged as without it.
    """
    before, _here.is_judging = _here.is_judging, True
    try:
        with contextlib.suppress(ExperimentOverError):  # then it matters to nobody
            try:
                manager.eval_failure(guid)
            except BaseException:  # an own manager may as well call sys.exit
                logger.exception("the failure manager %s failed; judged without it", type(manager).__name__)
                FailureManager.eval_failure(manager, guid)
    finally:
        _here.is_judging = before
    level, reason = seen(manager)
    engine.note(Leveled(t=engine.now(), level=level, reason=reason, guid=guid))


def look(manager: FailureManager, engine: Engine, guid: int) -> None:
    """Judge a failure: with a manager of ours at once, with an own one, which may take long, in a thread."""
    work = functools.partial(judge, manager, engine, guid)
    if type(manager).__module__ == __name__:
        work()
    else:
        engine.run(work)


def heed(manager: FailureManager, engine: Engine) -> None:
    """Note it if a manager finds the experiment worse than it was: it may change its mind at any time."""
    if _here.is_heeding:  # what an own manager says of itself may ask the experiment
        return
    _here.is_heeding = True
    try:
        level, reason = seen(manager)
    finally:
        _here.is_heeding = False
    if level > engine.state.level:
        engine.note(Leveled(t=engine.now(), level=level, reason=reason))


def seen(manager: FailureManager) -> tuple[FailureLevel, str]:
    """Return how bad a manager finds it, and why. It may ask for an end without saying how bad it is, nor why."""
    name = type(manager).__name__
    try:
        found, abort, reason = manager.failure_level, bool(manager.abort), as_reason(manager.reason)
        level = FailureLevel(found)
    except Exception as error:  # noqa: BLE001 - the code of an own manager
        return FailureLevel.RM_FAILURE, f"{name} does not tell how bad it is: {told(error)}"
    if level is FailureLevel.OK and abort:
        level = FailureLevel.RM_FAILURE
    return level, (reason or f"{name} aborts") if level is not FailureLevel.OK else ""


def is_failed(ec: Experiment, guid: int) -> bool:
    """Tell whether a resource failed; one that was taken out did not."""
    seen = ec.engine.state.resources.get(guid)
    return seen is not None and seen.state is ResourceState.FAILED


def is_critical(ec: Experiment, guid: int) -> bool:
    """Tell whether the experiment cannot do without a resource."""
    seen = ec.engine.state.resources.get(guid)
    return seen is not None and seen.critical


def _why(ec: Experiment, guid: int) -> str:
    """Return the reason of a failure as messages go on with it; "" where none was told."""
    seen = ec.engine.state.resources.get(guid)
    return f": {seen.reason}" if seen is not None and seen.reason else ""


def name_of(ec: Experiment, guid: int) -> str:
    """Return how messages name a resource."""
    try:
        return str(ec.get_resource(guid).name)
    except Exception:  # noqa: BLE001 - it was taken out, or its type names it by code of its own
        return f"resource {guid}"


def manager_given(fm: object) -> FailureManager:
    """Return the failure manager that a caller gave, ours for None. Raises InvalidPolicyError."""
    if fm is None:
        return FailureManager()
    if not isinstance(fm, FailureManager):
        raise InvalidPolicyError(f"fm is {fm!r:.80}, and no FailureManager: derive a class, and give an instance")
    return fm


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


def policy_left_in(run_dir: Path) -> FailureManager:
    """Return a failure manager as the document in the folder of a run says. Raises DescriptionError, StorageError."""
    path = run_dir / DOCUMENT
    return manager_of(read(path).failures if path.is_file() else None)
