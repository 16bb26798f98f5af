"""How long verbs may take, and how often they are tried again: by type, and by resource over that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from fedmon.experiment.errors import InvalidPolicyError
from fedmon.experiment.events import Retry, Verb

_VERBS: tuple[str, ...] = get_args(Verb)
_MOST = 10**9


def checked_timeouts(*given: Mapping[Verb, float] | None) -> dict[Verb, float]:
    """Return timeouts in seconds by verb, later mappings over earlier ones. Raises InvalidPolicyError."""
    found: dict[Verb, float] = {}
    for mapping in given:
        if mapping is None:
            continue
        _check_mapping(mapping, "timeouts")
        for verb, timeout_s in mapping.items():
            _check_verb(verb, "timeouts")
            if not _is_number(timeout_s) or not 0 < timeout_s < math.inf:
                raise InvalidPolicyError(
                    f"the timeout of {verb} is {timeout_s!r:.80}: take a number of seconds above 0"
                )
            found[verb] = float(timeout_s)
    return found


def checked_retries(*given: Mapping[Verb, Retry] | None) -> dict[Verb, Retry]:
    """Return how often verbs are tried again, later mappings over earlier ones. Raises InvalidPolicyError."""
    found: dict[Verb, Retry] = {}
    for mapping in given:
        if mapping is None:
            continue
        _check_mapping(mapping, "retry")
        for verb, retry in mapping.items():
            _check_verb(verb, "retry")
            if not isinstance(retry, Retry):
                raise InvalidPolicyError(f"the retry of {verb} is {retry!r}: take Retry(times=3, delay_s=1.0)")
            if type(retry.times) is not int or not 0 <= retry.times < _MOST:
                raise InvalidPolicyError(f"times of the retry of {verb} is {retry.times!r}: take a whole number from 0")
            for name in ("delay_s", "factor", "max_delay_s"):
                value = getattr(retry, name)
                if not _is_number(value) or not 0 <= value < math.inf:
                    raise InvalidPolicyError(f"{name} of the retry of {verb} is {value!r:.80}: take a number from 0")
            found[verb] = retry
    return found


def _check_mapping(given: object, what: str) -> None:
    if not (given is None or type(given) is dict or isinstance(given, Mapping)):  # the second one is the fast one
        raise InvalidPolicyError(f"{what} {given!r:.80} are not by verb: take {{'deploy': ...}}")


def _check_verb(verb: str, what: str) -> None:
    if verb not in _VERBS:
        raise InvalidPolicyError(f"{what} of {verb!r}, which is no verb: there are {', '.join(_VERBS)}")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 2**63
