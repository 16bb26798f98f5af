"""What jobs do is read from their folders and passed on, until they have ended or nobody keeps them any more."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.wire.runs import JobState
from fedmon.node.runs.conclusion import Conclusion
from fedmon.node.runs.going import Going, Phase, over
from fedmon.node.runs.order import ORDER, Event, Logged, Reported, Started
from fedmon.node.runs.telling import Telling
from fedmon.node.runs.watching import Watching

logger = logging.getLogger(__name__)

LOST = "what watched over the job ended before it; nothing of it is left running"
NOT_STARTED = "the node ended before it could start the job: run it again, as a new job"


class Following:
    """Reads the folders of jobs; belongs to the node's worker.

    ``energy_j(job_id, ended)`` is what a job was measured to use, null where that is not known.
    """

    def __init__(
        self,
        conclusion: Conclusion,
        telling: Telling,
        watching: Watching,
        *,
        energy_j: Callable[[str, float | None], float | None],
    ) -> None:
        self._conclusion, self._telling, self._watching = conclusion, telling, watching
        self._energy_j = energy_j

    def look(self, going: Going) -> None:
        """Pass on what is new of a job, and take its end. Raises StorageError."""
        if going.phase is not Phase.KEEPER:
            return
        # The end is looked for first: what happened before it is all there then.
        ending = going.folder.ending()
        while True:
            found = going.folder.events(going.read_bytes)
            for event in found.events:
                self._take(going, event)
            is_all = found.next_offset == going.read_bytes
            if not is_all:
                going.read_bytes, going.is_saved = found.next_offset, False
            if is_all or ending is None:
                break
        if ending is not None:
            job_id = going.job.job_id
            energy_j = self._energy_j(job_id, ending.usage.wall_s)
            self._watching.end(job_id)
            self._telling.ended(going.record.researcher_id)
            self._conclusion.take(going, over(going.job, ending, energy_j=energy_j), ending)

    def look_after(self, going: Going) -> None:
        """Look at a job that may have no keeper any more, or whose end could not be written. Raises StorageError."""
        if going.phase is Phase.REGISTER and going.verdict is not None:
            self._conclusion.conclude(going, *going.verdict)
            return
        if going.phase is not Phase.KEEPER:
            return
        is_alive = going.folder.is_alive()
        self.look(going)
        if not is_alive and going.phase is Phase.KEEPER:
            self._lost(going)

    def take_up(self, going: Going) -> None:
        """Go on with a job of an earlier daemon. Raises StorageError."""
        self.look_after(going)
        if going.phase is Phase.KEEPER:
            self._watch_again(going)

    def _take(self, going: Going, event: Event) -> None:
        match event:
            case Started():
                going.started(event)
                self._watching.begin(going.job.job_id, event.pid, going.job.name, going.folder.path)
            case Reported():
                going.is_now(msgspec.structs.replace(going.job, scalars=max(going.job.scalars, event.number + 1)))
                self._telling.scalar(going.job.job_id, going.record.researcher_id, event)
            case Logged():
                self._telling.log(going.job.job_id, event)

    def _watch_again(self, going: Going) -> None:
        # Its start was passed on by the daemon before, whose watch went with it.
        for event in going.folder.events().events:
            if isinstance(event, Started):
                self._watching.begin(going.job.job_id, event.pid, going.job.name, going.folder.path)
                return

    def _lost(self, going: Going) -> None:
        """Say of a job without keeper and without end what became of it; what it left running is killed."""
        job_id = going.job.job_id
        killed = going.folder.kill_leftovers()
        if killed:
            logger.warning("job %s was lost, and %d processes of it were killed", job_id, len(killed))
        self._watching.end(job_id)
        began = going.job.started is not None or going.folder.had_keeper()
        was_ordered = (going.folder.path / ORDER).exists()
        state, reason = (JobState.LOST, LOST) if began and was_ordered else (JobState.NOT_STARTED, NOT_STARTED)
        job = msgspec.structs.replace(going.job, state=state, reason=reason, ended=utc_now())
        self._telling.ended(going.record.researcher_id)
        self._conclusion.conclude(going, job)
