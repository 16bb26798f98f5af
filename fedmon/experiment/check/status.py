"""The status of a run: each resource with its times and reasons, and the one that holds up most others."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from fedmon.common.log import escape_control
from fedmon.common.text import plural
from fedmon.experiment.check.explain import Explanation, explain
from fedmon.experiment.check.graph import titled
from fedmon.experiment.journal import Follower
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import FailureLevel, ResourceState

Status = Literal["running", "ended", "failed", "left"]
MAX_EXPLAINED = 300
"""Most resources that are explained, to keep the status of a large run short."""
RUNS = "it runs"
_WORDS: Mapping[Status, str] = {
    "running": "running",
    "ended": "ended, and everything was released",
    "failed": "failed, and everything was released",
    "left": "interrupted: no process on this machine runs it; `fedmon experiment reconnect RUN_DIR` resumes it",
}


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a resource. ``reached`` is its state, or the last one before RELEASED.

    ``times`` are Unix seconds by state; ``waiting`` describes the cause of its wait, ``reason`` its failure.
    ``action`` waits for the resources ``waits_for``, or for another ``left_s`` seconds.
    """

    guid: int
    name: str
    rtype: str
    state: str
    reached: str
    times: dict[str, float]
    critical: bool
    failed: bool
    reason: str = ""
    waiting: str = ""
    action: str = ""
    waits_for: tuple[int, ...] = ()
    left_s: float | None = None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a run. ``process`` runs it, None if none does or it is unknown; ``blocker`` holds it up.

    ``status`` is "left" if its process ended without a release, so that it can be reconnected.
    """

    exp_id: str
    run_id: str
    run_dir: str
    status: Status
    process: int | None
    began: float
    until: float
    level: str
    level_reason: str
    counts: dict[str, int]
    blocker: str
    resources: tuple[Standing, ...]

    @property
    def failed(self) -> tuple[Standing, ...]:
        """The critical resources that failed."""
        return tuple(each for each in self.resources if each.failed and each.critical)

    @property
    def is_well(self) -> bool:
        """Whether neither the experiment nor a critical resource failed."""
        return not self.failed and self.level == FailureLevel.OK.name


def standings(state: State, explained: Mapping[int, Explanation]) -> tuple[Standing, ...]:
    """Return the status of each resource, with its waits if it was explained."""
    resources = sorted(state.resources.values(), key=lambda each: each.guid)
    return tuple(_standing(each, explained.get(each.guid)) for each in resources)


def explanations(state: State, now: float) -> dict[int, Explanation]:
    """Return why resources are not over yet, for the first `MAX_EXPLAINED`."""
    unfinished = sorted(guid for guid, each in state.resources.items() if each.state < ResourceState.STOPPED)
    return {guid: explain(state, guid, now) for guid in unfinished[:MAX_EXPLAINED]}


def blocker(state: State, now: float, explained: Mapping[int, Explanation]) -> str:
    """Return the resource that holds up most others, and the cause of its wait; "" if none waits for another."""
    chains = [each.chain for each in explained.values() if each.state < ResourceState.STARTED and len(each.chain) > 1]
    if not chains or state.is_aborted:
        return ""
    guid, count = Counter(chain[-1] for chain in chains).most_common(1)[0]
    found = state.resources[guid]
    if found.state >= ResourceState.STOPPED:  # only a delay is left
        guid = next(chain[-2] for chain in chains if chain[-1] == guid)
        return f"{titled(guid, state)}: {_waiting(explain(state, guid, now))}"
    waits = plural(count, "resource waits", "resources wait")
    return f"{waits} for {titled(guid, state)}, which is {found.state.name}: {_waiting(explain(state, guid, now))}"


def as_reached(state: State) -> State:
    """Return a state in which released resources are as before their release, as drawings show them."""
    reached = {guid: replace(each, state=_reached(each)) for guid, each in state.resources.items()}
    return replace(state, resources=state.resources.update(reached))


def followed(follower: Follower) -> Overview:
    """Return the status of a run, of this process or another one, as it is now. Raises StorageError."""
    is_live = follower.is_held
    follower.look()  # after the look for the process, so that its last events are not missed
    if is_live and not follower.is_held:  # it ended meanwhile
        return followed(follower)
    state, folder = follower.run.state, follower.folder
    now = max(time.time(), follower.run.until) if is_live else follower.run.until
    counts = Counter(resource.state for resource in state.resources.values())
    explained = explanations(state, now) if is_live else {}
    resources = standings(state, explained)
    status: Status = "running"
    if not is_live and any(each.state is not ResourceState.RELEASED for each in state.resources.values()):
        status = "left"
    elif not is_live:
        status = "failed" if state.is_aborted or any(each.failed and each.critical for each in resources) else "ended"
    return Overview(
        exp_id=folder.parent.name,
        run_id=folder.name,
        run_dir=str(folder),
        status=status,
        process=follower.run.process or None if is_live else None,
        began=follower.began,
        until=now,
        level=state.level.name,
        level_reason=state.level_reason,
        counts={each.name: count for each, count in sorted(counts.items())},
        blocker=blocker(state, now, explained),
        resources=resources,
    )


def heading(shown: Overview) -> str:
    """Return one line that names a run and its status."""
    words = _WORDS[shown.status].replace("RUN_DIR", shlex.quote(shown.run_dir))
    words += f" (process {shown.process})" if shown.process is not None else ""
    return escape_control(f"experiment {shown.exp_id}, run {shown.run_id}: {words}")


def _standing(resource: Resource, explained: Explanation | None) -> Standing:
    first = explained.waiting[0] if explained is not None and explained.waiting else None
    return Standing(
        guid=resource.guid,
        name=resource.name,
        rtype=resource.rtype,
        state=resource.state.name,
        reached=_reached(resource).name,
        times={each.name: t for each, t in resource.times},
        critical=resource.critical,
        failed=resource.has_failed,
        reason=resource.reason,
        waiting="" if explained is None else _waiting(explained),
        action="" if first is None else first.action,
        waits_for=() if first is None else first.guids,
        left_s=None if first is None else first.left_s,
    )


def _reached(resource: Resource) -> ResourceState:
    """Return the state of a resource, or the last one before it was RELEASED."""
    before = [each for each, _ in resource.times if each is not ResourceState.RELEASED] or [ResourceState.NEW]
    return before[-1] if resource.state is ResourceState.RELEASED else resource.state


def _waiting(found: Explanation) -> str:
    if not found.waiting:
        return RUNS if found.state is ResourceState.STARTED else found.reason
    first = found.waiting[0]
    is_at_work = not first.guids and first.gives_up_in_s is not None
    return f"{found.reason}; {first.text}" if is_at_work else first.text
