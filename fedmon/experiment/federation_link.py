"""The federation of an experiment: one that was given, or one that is opened when the first resource needs it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fedmon.common.errors import FedmonError
from fedmon.experiment.errors import ExperimentOverError, FederationUnreachableError

if TYPE_CHECKING:
    from fedmon.researcher.federation import Federation


class FederationLink:
    """Holds the federation; safe from any thread. Only one that was opened here is closed here."""

    def __init__(self, given: Federation | None) -> None:
        self._given = given
        self._opened: Federation | None = None
        self._is_over = False
        self._failed: list[FedmonError] = []
        self._lock = threading.Lock()

    @property
    def given(self) -> Federation | None:
        """The federation that was given; null where the settings say which it is."""
        return self._given

    def get(self) -> Federation:
        """Return the federation, opened from the settings where none was given.

        Raises ConnectionFailedError where there is no broker, FederationUnreachableError where another found that out
        while we waited for him, and ExperimentOverError after `close`.
        """
        if self._given is not None:
            return self._given
        before = len(self._failed)
        with self._lock:
            if len(self._failed) > before:  # one try, which takes its time, is enough for all who came meanwhile
                raise FederationUnreachableError(str(self._failed[-1])) from self._failed[-1]
            if self._is_over:
                raise ExperimentOverError("the experiment was shut down, and its federation closed")
            if self._opened is None:
                # Connecting is for experiments that need it: the frame itself runs without a broker.
                from fedmon.researcher.federation import Federation

                try:
                    self._opened = Federation().start()
                except FedmonError as error:
                    self._failed.append(error)
                    raise
            return self._opened

    def close(self) -> None:
        """Close what was opened here."""
        self._is_over = True  # for those who wait for the lock
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
