"""The timers of an experiment: which there are, and which of them a state needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.events import Alarm, Timer, Verb
from fedmon.experiment.situation import State, WantKey


def delay_of(key: WantKey) -> Timer:
    """Return the timer of a want whose conditions hold, and are to hold for a time."""
    guid, name = key
    return Timer(guid=guid, purpose="delay", want=name)


def limit_of(key: WantKey, number: int) -> Timer:
    """Return the timer that ends the waiting of a want for the condition of a number."""
    guid, name = key
    return Timer(guid=guid, purpose="condition-timeout", want=name, number=number)


def verb_limit_of(guid: int, verb: Verb) -> Timer:
    """Return the timer of a verb that runs."""
    return Timer(guid=guid, purpose="verb-timeout", want=verb)


def retry_of(guid: int, verb: Verb) -> Timer:
    """Return the timer of a verb that is to be tried again."""
    return Timer(guid=guid, purpose="retry", want=verb)


def condition_alarms(key: WantKey, conditions: Iterable[AnyCondition], *, since: float) -> Iterator[Alarm]:
    """Return the alarms of those conditions that may not last for ever."""
    for condition in conditions:
        if condition.timeout_s is not None:
            yield Alarm(timer=limit_of(key, condition.number), at=since + condition.timeout_s)


def alarms(state: State, now: float) -> Iterator[Alarm]:
    """Return the alarms of a state that another process left, each for the moment it was meant for.

    A verb that was under way or to be tried again has no such moment: its time begins ``now``.
    """
    for want in state.wants.values():
        if want.due is not None:
            yield Alarm(timer=delay_of(want.key), at=want.due)
        yield from condition_alarms(want.key, want.conditions, since=want.since)
    for resource in state.resources.values():
        if resource.retrying is not None:
            yield Alarm(timer=retry_of(resource.guid, resource.retrying), at=now)
        if resource.calling is not None and resource.calling in resource.timeouts:
            yield Alarm(
                timer=verb_limit_of(resource.guid, resource.calling), at=now + resource.timeouts[resource.calling]
            )
