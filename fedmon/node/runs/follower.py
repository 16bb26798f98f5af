"""What jobs do is read from their folders and passed on, until they have ended or nobody keeps them any more."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fedmon.common.actor import Actor
from fedmon.common.clock import utc_now
from fedmon.common.errors import FedmonError, NotFoundError
from fedmon.common.metrics.sample import user_stream
from fedmon.common.wire.runs import JobScalar, JobState, RunScalars
from fedmon.node.measure.publisher import BURST, PER_S
from fedmon.node.requests.policy import Policy
from fedmon.node.requests.throttle import Throttle
from fedmon.node.runs.conclusion import Conclusion
from fedmon.node.runs.going import Going, Phase, over
from fedmon.node.runs.order import ORDER, TMP, Event, Logged, Reported, Started

if TYPE_CHECKING:
    from fedmon.node.measure.pipeline import Pipeline

LOGGER = "fedmon.job"
MAX_BYTES = 90_000
"""What the scalars of one message may take; the rest of it is for the envelope."""
_FRAME_BYTES, _VALUE_BYTES = 256, 32

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


class Watching:
    """Has jobs watched, on a thread of its own: a look at /proc takes milliseconds, which no job waits for.

    Methods are safe from any thread, and return at once; the thread is there from the first job on.
    """

    def __init__(self, measuring: Pipeline) -> None:
        self._measuring = measuring
        self._actor: Actor | None = None

    def begin(self, job_id: str, pid: int, name: str, folder: Path) -> None:
        """Watch a process and its descendants, or those that left it, as the stream of the job of a folder."""
        if not self._measuring.enabled:
            return
        if self._actor is None:
            self._actor = Actor("fedmon-runs-watching")
            self._actor.start()
        # Not the job's id, which jobs of other nodes on this machine have, too. In a pid namespace nothing gets away.
        marker = f"TMPDIR={folder / TMP}"
        add = partial(self._measuring.jobs.add, job_id, pids=[pid], name=name[:200], marker=marker)
        self._actor.post(lambda: self._change(job_id, add))

    def end(self, job_id: str) -> None:
        """Let go of a job that is over."""
        if self._actor is not None:
            self._actor.post(lambda: self._change(job_id, lambda: self._measuring.jobs.remove(job_id)))

    def stop(self, timeout_s: float) -> None:
        """End the thread."""
        if self._actor is not None:
            self._actor.close(timeout_s=timeout_s)

    def _change(self, job_id: str, change: Callable[[], object]) -> None:
        try:
            change()
        except NotFoundError:
            pass  # it has ended already
        except FedmonError as error:
            logger.info("job %s is not watched: %s", job_id, error)


class Telling:
    """Passes scalars and logs of jobs on; belongs to the node's worker.

    ``send(message)`` hands a message to the connection of its researcher. Scalars that come too fast, or while there is
    no connection, are not sent: they are numbered, and a researcher asks for those that are missing.
    """

    def __init__(
        self,
        measuring: Pipeline,
        *,
        node_id: str,
        send: Callable[[RunScalars], bool],
        policy: Policy,
        is_heard: bool,
    ) -> None:
        self._measuring, self._node_id, self._send = measuring, node_id, send
        self._policy, self._is_heard = policy, is_heard
        self._throttle = Throttle(burst=BURST, per_s=PER_S)
        self._waiting: dict[str, list[JobScalar]] = {}
        self._bytes: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self.unsent = 0

    def scalar(self, job_id: str, researcher_id: str, event: Reported) -> None:
        """Take one report: it is recorded for its researcher, and goes out with the next message."""
        if not self._throttle.allows(researcher_id, len(event.values)):
            self._dropped[researcher_id] += len(event.values)
            self.unsent += 1
            return
        scalar = JobScalar(
            job_id=job_id,
            number=event.number,
            t=event.t,
            mono=time.monotonic() + (event.t - time.time()),
            values=event.values,
            step=event.step,
            dropped=self._dropped[researcher_id],
        )
        if self._measuring.enabled and event.values:
            stream = user_stream(researcher_id)
            seq = self._measuring.publisher.publish(stream, scalar.sample(), is_private=True)
            scalar = msgspec.structs.replace(scalar, seq=seq)
        size_bytes = _FRAME_BYTES + sum(len(name) + _VALUE_BYTES for name in event.values)
        if not self._is_heard or self._bytes[researcher_id] + size_bytes > MAX_BYTES:
            self.unsent += 1
            return
        self._waiting.setdefault(researcher_id, []).append(scalar)
        self._bytes[researcher_id] += size_bytes

    def flush(self) -> None:
        """Send what waits, one message for each researcher; called once a second."""
        for researcher_id in list(self._waiting):
            self._flush(researcher_id)

    def ended(self, researcher_id: str) -> None:
        """Have the scalars of a job that ended recorded and sent, before its outcome."""
        self._measuring.publisher.flush(user_stream(researcher_id))
        self._flush(researcher_id)

    def _flush(self, researcher_id: str) -> None:
        scalars = self._waiting.pop(researcher_id, [])
        self._bytes.pop(researcher_id, None)
        if not scalars or self._policy.refusal(researcher_id) is not None:
            return
        message = RunScalars(
            node_id=self._node_id, researcher_id=researcher_id, boot=self._measuring.boot, scalars=scalars
        )
        if not self._send(message):
            self.unsent += len(scalars)

    def log(self, job_id: str, event: Logged) -> None:
        """Log what the plan logged, unless its words stay here; the policy's level is applied on the way out."""
        level = logging.getLevelNamesMapping()[event.level]
        job_logger = logging.getLogger(LOGGER)
        if self._policy.settings.job_output and job_logger.isEnabledFor(level):
            # A logger for each job would stay for ever; a record can have a name without one.
            job_logger.handle(logging.LogRecord(f"{LOGGER}.{job_id}", level, __file__, 0, "%s", (event.message,), None))
