"""Which NEPI wrote a file: both kept states as numbers, and in NEPI 3 all after DISCOVERED are one lower than in 6.

Source: NEPI 3 has no RESERVED; the files of both have the same elements and no number of a version.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

from fedmon.experiment.document.errors import UnknownStateError
from fedmon.experiment.document.xml_elements import Element
from fedmon.experiment.states import ResourceState

logger = logging.getLogger(__name__)

VERSIONS = (3, 6)
TIMES = {
    ResourceState.DISCOVERED: "discover_time",
    ResourceState.RESERVED: "reserved_time",
    ResourceState.PROVISIONED: "provision_time",
    ResourceState.READY: "ready_time",
    ResourceState.STARTED: "start_time",
    ResourceState.STOPPED: "stop_time",
    ResourceState.FAILED: "failed_time",
    ResourceState.RELEASED: "release_time",
}
"""The names under which NEPI's files hold when a resource came to a state."""

_OLD_STATES = tuple(state for state in ResourceState if state is not ResourceState.RESERVED)
_TIME = re.compile(r"[0-9]{20}")
_OLD_TYPE = re.compile(r"(Linux|Planetlab|OMF|NS3|Ns3)[A-Za-z0-9]+")
"""Types were named so before NEPI put two colons between platform and kind."""


def state_of(text: str, version: int, *, where: str) -> ResourceState:
    """Return a state by its name, or by its number in a NEPI of that version. Raises UnknownStateError."""
    states = _OLD_STATES if version == 3 else tuple(ResourceState)
    text = text.strip()
    if text.upper() in ResourceState.__members__:
        return ResourceState[text.upper()]
    if re.fullmatch(r"[0-9]{1,2}", text) and int(text) < len(states):
        return states[int(text)]
    raise UnknownStateError(
        f"{where}: no state {text[:60]!r}; one of: {', '.join(ResourceState.__members__)}"
        + (f", or in a file of NEPI {version} a number from 0 to {len(states) - 1}" if version in VERSIONS else "")
    )


def version_of(root: Element) -> int:
    """Return 3 or 6: which NEPI wrote a file, as far as its states and times tell; 6, the last one, where they do not.

    What would tell wrong states from right ones is asked first: a state must be the last one that has a time.
    """
    votes = list(_evidence(root))
    if votes:
        return votes[0]
    if any(text.strip().isdigit() and int(text) > 1 for text in _states(root)):
        logger.warning("a file of NEPI tells states by numbers and not of which version: taken as NEPI 6, not NEPI 3")
    return 6


def _states(root: Element) -> Iterator[str]:
    for resource in root.below("rm"):
        yield resource.attributes.get("state", "")
        for condition in resource.each("conditions", "condition"):
            yield condition.attributes.get("state", "")


def _evidence(root: Element) -> Iterator[int]:
    for resource in root.below("rm"):
        # Where there was none, NEPI may write "None", which is later than any time as a text.
        given = [
            (resource.attributes[name], state)
            for state, name in TIMES.items()
            if _TIME.fullmatch(resource.attributes.get(name, ""))
        ]
        if any(state is ResourceState.RESERVED for _, state in given):
            yield 6
        text = resource.attributes.get("state", "").strip()
        if given and re.fullmatch(r"[0-9]{1,2}", text):
            # Times are digits from the year to the microsecond, so the last one is also the greatest text.
            _, last = max(given)
            yield from (version for version in VERSIONS if state_of_number(int(text), version) is last)
    if any(text.strip() == str(ResourceState.RELEASED.value) for text in _states(root)):
        yield 6
    if any(_OLD_TYPE.fullmatch(resource.attributes.get("rtype", "")) for resource in root.below("rm")):
        yield 3
    # A wait for a failure was never kept by NEPI 3, in which 6 means FAILED; in NEPI 6 it means STOPPED.
    if any(
        condition.attributes.get("state", "").strip() == str(ResourceState.STOPPED.value)
        for resource in root.below("rm")
        for condition in resource.each("conditions", "condition")
    ):
        yield 6


def state_of_number(number: int, version: int) -> ResourceState | None:
    """Return the state that a number means; null where there is no such number."""
    states = _OLD_STATES if version == 3 else tuple(ResourceState)
    return states[number] if number < len(states) else None
