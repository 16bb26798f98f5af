"""Who the methods of a controller hand on to."""

from __future__ import annotations

from collections.abc import Iterable

from fedmon.experiment.book import Book
from fedmon.experiment.engine import Engine
from fedmon.experiment.life import Life
from fedmon.experiment.tasks import Tasks
from fedmon.experiment.wiring import Wiring

Guids = int | Iterable[int]


class Delegate:
    """What a controller is made of."""

    _engine: Engine
    _book: Book
    _wiring: Wiring
    _tasks: Tasks
    _life: Life
