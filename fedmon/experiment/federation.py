"""The federation of an experiment: the one that it was given, or one that is opened when a resource needs it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fedmon.common.errors import FedmonError
from fedmon.experiment.errors import ExperimentOverError, FederationUnreachableError

if TYPE_CHECKING:
    from fedmon.researcher.federation import Federation


class FederationLink:
    """A federation that is opened from the settings at its first use, unless one was given; safe from any thread."""

    def __init__(self, given: Federation | None) -> None:
        self.given = given
        self._opened: Federation | None = None
        self._unreachable: FedmonError | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def open(self) -> Federation:
        """Return the federation.

        Raises ConnectionFailedError if there is no broker, FederationUnreachableError if another caller found that out
        meanwhile, and ExperimentOverError once it was closed.
        """
        if self.given is not None:
            return self.given
        before = self._unreachable
        with self._lock:
            if self._unreachable is not before:  # one try, which takes its time, is enough for all who came meanwhile
                raise FederationUnreachableError(str(self._unreachable)) from self._unreachable
            if self._is_closed:
                raise ExperimentOverError("the experiment was shut down, and its federation closed")
            if self._opened is None:
                # Connecting is for experiments that need it: the frame itself runs without a broker.
                from fedmon.researcher.federation import Federation

                try:
                    self._opened = Federation().start()
                except FedmonError as error:
                    self._unreachable = error
                    raise
            return self._opened

    def close(self) -> None:
        """Close the federation if it was opened here."""
        with self._lock:
            opened, self._opened, self._is_closed = self._opened, None, True
        if opened is not None:
            opened.close()
