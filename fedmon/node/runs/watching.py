"""The processes of running jobs are watched as streams of samples, without holding up anything else."""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path

from fedmon.common.errors import FedmonError, NotFoundError
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.runs.order import TMP

logger = logging.getLogger(__name__)

_Task = tuple[str, int | None, str, str]


class Watching:
    """Has jobs watched, on a thread of its own: a look at /proc takes milliseconds, which no job waits for.

    Methods are safe from any thread, and return at once; the thread is there from the first job on.
    """

    def __init__(self, measuring: Pipeline) -> None:
        self._measuring = measuring
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, job_id: str, pid: int, name: str, folder: Path) -> None:
        """Watch a process and what descends from it, or left it, as the stream of the job of a folder."""
        if not self._measuring.enabled:
            return
        # Not the job's id, which jobs of other nodes on this machine have, too. In a pid namespace nothing gets away.
        self._queue.put((job_id, pid, name, f"TMPDIR={folder / TMP}"))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fedmon-runs-watching")
            self._thread.start()

    def end(self, job_id: str) -> None:
        """Let go of a job that is over."""
        if self._thread is not None:
            self._queue.put((job_id, None, "", ""))

    def stop(self, timeout_s: float) -> None:
        """End the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            job_id, pid, name, marker = task
            try:
                if pid is None:
                    self._measuring.jobs.remove(job_id)
                else:
                    self._measuring.jobs.add(job_id, pids=[pid], name=name[:200], marker=marker)
            except NotFoundError:
                continue  # it has ended already
            except FedmonError as error:
                logger.info("job %s is not watched: %s", job_id, error)
            except Exception:
                # Jobs run whether they are measured or not.
                logger.exception("job %s is not watched", job_id)
