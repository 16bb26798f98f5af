"""The status of a run: each resource with its times and reasons, and the one that holds up most others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from fedmon.common.log import escape_control
from fedmon.experiment.check.explain import Explanation, explain
from fedmon.experiment.check.problems import called
from fedmon.experiment.journal import Follower
from fedmon.experiment.natures import natures
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import FailureLevel, ResourceState

Status = Literal["running", "ended", "failed", "left"]
MAX_EXPLAINED = 300
"""At most so many resources are explained, to keep a look at a large run short."""

RUNS = "it runs"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a resource. ``reached`` is its state, or the last one before RELEASED.

    ``times`` are Unix seconds by state; ``waiting`` is what it waits for in words, ``reason`` why it failed.
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

    @property
    def since(self) -> float | None:
        """When it reached its state."""
        return self.times.get(self.state)


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


def standings(state: State, names: Mapping[int, str], now: float, *, is_live: bool = True) -> tuple[Standing, ...]:
    """Return the status of each resource; of a live run, with waits for the first `MAX_EXPLAINED`."""
    found, asked, nature = [], 0, natures()
    for resource in sorted(state.resources.values(), key=lambda each: each.guid):
        explained = None
        if is_live and asked < MAX_EXPLAINED and resource.state < ResourceState.STOPPED:
            asked += 1
            explained = explain(state, resource.guid, now, nature)
        found.append(_standing(resource, names.get(resource.guid, ""), explained))
    return tuple(found)


def blocker(state: State, names: Mapping[int, str], now: float) -> str:
    """Return which resource holds up most others, and what it waits for itself; "" if none waits for another."""
    ends: Counter[int] = Counter()
    waiting: dict[int, int] = {}
    nature = natures()
    for resource in state.resources.values():
        if ends.total() >= MAX_EXPLAINED:
            break
        if resource.state < ResourceState.STARTED and not state.is_aborted:
            chain = explain(state, resource.guid, now, nature).chain
            if len(chain) > 1:
                ends[chain[-1]] += 1
                waiting.setdefault(chain[-1], chain[-2])
    if not ends:
        return ""
    guid, count = ends.most_common(1)[0]
    found = state.resources.get(guid)
    if found is not None and found.state >= ResourceState.STOPPED:  # only a delay is left
        return f"{called(waiting[guid], names, state)}: {_waiting(explain(state, waiting[guid], now))}"
    text = f"{count} {'waits' if count == 1 else 'wait'} for {called(guid, names, state)}"
    if found is None:
        return f"{text}, which does not exist"
    return f"{text}, which is {found.state.name}: {_waiting(explain(state, guid, now))}"


def as_reached(state: State) -> State:
    """Return a state in which released resources are as before their release, as drawings show them."""
    resources = state.resources.mutate()
    for resource in state.resources.values():
        if resource.state is ResourceState.RELEASED:
            resources[resource.guid] = replace(resource, state=_reached(resource))
    return replace(state, resources=resources.finish())


def followed(follower: Follower, now: float) -> Overview:
    """Return the status of a run at ``now``, of this process or another one. Raises StorageError."""
    process = follower.process
    follower.look()  # after the look for the process, so that its last events are not missed
    if process is not None and follower.process is None:
        return followed(follower, now)
    is_live, state, names, folder = process is not None, follower.state, follower.names(), follower.folder
    now = max(now, follower.until) if is_live else follower.until
    counts = Counter(resource.state for resource in state.resources.values())
    resources = standings(state, names, now, is_live=is_live)
    released = all(each.state is ResourceState.RELEASED for each in state.resources.values())
    failed = state.is_aborted or any(each.failed and each.critical for each in resources)
    return Overview(
        exp_id=folder.parent.name,
        run_id=folder.name,
        run_dir=str(folder),
        status="running" if is_live else "left" if not released else "failed" if failed else "ended",
        process=process,
        began=follower.began,
        until=now,
        level=state.level.name,
        level_reason=state.level_reason,
        counts={each.name: count for each, count in sorted(counts.items())},
        blocker=blocker(state, names, now) if is_live else "",
        resources=resources,
    )


def heading(shown: Overview) -> str:
    """Return one line that names a run and its status."""
    by = f" (process {shown.process})" if shown.process is not None else ""
    words = {
        "running": f"runs{by}",
        "ended": "ended, and released everything",
        "failed": "failed, and released everything",
        "left": "no process of this machine has it, and it was not released: `fedmon experiment reconnect` resumes it",
    }
    return escape_control(f"experiment {shown.exp_id}, run {shown.run_id}: {words[shown.status]}")


def _standing(resource: Resource, name: str, explained: Explanation | None) -> Standing:
    first = explained.waiting[0] if explained is not None and explained.waiting else None
    is_released = resource.state is ResourceState.RELEASED
    return Standing(
        guid=resource.guid,
        name=name,
        rtype=resource.rtype,
        state=resource.state.name,
        reached=(_reached(resource) if is_released else resource.state).name,
        times={each.name: t for each, t in resource.times},
        critical=resource.critical,
        failed=any(each is ResourceState.FAILED for each, _ in resource.times),
        reason=resource.reason,
        waiting="" if explained is None else _waiting(explained),
        action="" if first is None else first.action,
        waits_for=() if first is None else first.guids,
        left_s=None if first is None else first.left_s,
    )


def _reached(resource: Resource) -> ResourceState:
    before = [each for each, _ in resource.times if each is not ResourceState.RELEASED]
    return before[-1] if before else ResourceState.NEW


def _waiting(found: Explanation) -> str:
    if not found.waiting and found.state is ResourceState.STARTED:
        return RUNS
    if not found.waiting:
        return found.reason
    first = found.waiting[0]
    is_at_work = not first.guids and first.gives_up_in_s is not None
    return f"{found.reason}; {first.text}" if is_at_work else first.text
