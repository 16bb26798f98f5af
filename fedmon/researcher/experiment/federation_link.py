"""The federation of an experiment: one that was given, or one that is opened when the first resource needs it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fedmon.researcher.experiment.errors import ExperimentOverError

if TYPE_CHECKING:
    from fedmon.researcher.federation import Federation


class FederationLink:
    """Holds the federation; safe from any thread. Only one that was opened here is closed here."""

    def __init__(self, given: Federation | None) -> None:
        self._given = given
        self._opened: Federation | None = None
        self._is_over = False
        self._lock = threading.Lock()

    def get(self) -> Federation:
        """Return the federation, opened from the settings where none was given.

        Raises ConnectionFailedError where there is no broker, and ExperimentOverError after `close`.
        """
        if self._given is not None:
            return self._given
        with self._lock:
            if self._is_over:
                raise ExperimentOverError("the experiment was shut down, and its federation closed")
            if self._opened is None:
                # Connecting is for experiments that need it: the frame itself runs without a broker.
                from fedmon.researcher.federation import Federation

                self._opened = Federation().start()
            return self._opened

    def close(self) -> None:
        """Close what was opened here."""
        with self._lock:
            self._is_over = True
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
