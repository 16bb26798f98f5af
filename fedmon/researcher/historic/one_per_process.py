"""One object of a class in a process, as scripts of Fed-BioMed expect of `Requests`."""

from __future__ import annotations

import threading
from typing import Any, ClassVar


class OnePerProcess(type):
    """Makes a class return the object that there is already, until that one is closed."""

    _lock: ClassVar[threading.RLock] = threading.RLock()
    _living: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the object that there is; make one when there is none."""
        with cls._lock:
            if cls not in cls._living:
                cls._living[cls] = super().__call__(*args, **kwargs)
            return cls._living[cls]

    def forget(cls, closed: object) -> None:
        """Let the next call make a new object, when this is the one there is."""
        with cls._lock:
            if cls._living.get(cls) is closed:
                del cls._living[cls]
