"""Who the methods of a controller hand on to."""

from __future__ import annotations

from collections.abc import Iterable

from fedmon.researcher.experiment.book import Book
from fedmon.researcher.experiment.engine import Engine
from fedmon.researcher.experiment.life import Life
from fedmon.researcher.experiment.tasks import Tasks
from fedmon.researcher.experiment.wiring import Wiring

Guids = int | Iterable[int]


class Delegate:
    """What a controller is made of."""

    _engine: Engine
    _book: Book
    _wiring: Wiring
    _tasks: Tasks
    _life: Life
