"""A table in a notebook that changes in place while something goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from fedmon.researcher.runs.states import RunStates


def shown_in_place(changes: Iterable[RunStates]) -> bool:
    """Show each in place of the one before, where a notebook runs us; return whether the last one is over."""
    # Only a notebook has loaded it; to load it ourselves would take longer than most runs.
    display = getattr(sys.modules.get("IPython.display"), "display", None) if _is_notebook() else None
    place, last = None, None
    for last in changes:
        if display is None:
            continue
        if place is None:
            place = display(last, display_id=True)
        else:
            place.update(last)
    return last is not None and last.is_over


def _is_notebook() -> bool:
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = ask() if ask is not None else None
    return shell is not None and hasattr(shell, "kernel")
