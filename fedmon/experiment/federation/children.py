"""Waiting for the ends of processes, all in one thread."""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

Ended = Callable[[], None]


class Children:
    """Calls back when processes end, before they are reaped; one thread while there are any. Safe from any thread.

    Until a process is reaped its number, which is also that of its group, is no other's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selector: selectors.BaseSelector | None = None
        self._wake = (-1, -1)

    def watch(self, process: subprocess.Popen[bytes], ended: Ended) -> None:
        """Call back when a process ends."""
        if not hasattr(os, "pidfd_open"):
            threading.Thread(target=_wait, args=(process, ended), name="fedmon-experiment-child", daemon=True).start()
            return
        fd = os.pidfd_open(process.pid)
        with self._lock:
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
                self._wake = os.pipe()
                self._selector.register(self._wake[0], selectors.EVENT_READ)
                self._selector.register(fd, selectors.EVENT_READ, ended)
                threading.Thread(
                    target=self._run, args=(self._selector,), name="fedmon-experiment-children", daemon=True
                ).start()
            else:
                self._selector.register(fd, selectors.EVENT_READ, ended)
                os.write(self._wake[1], b"w")

    def _run(self, selector: selectors.BaseSelector) -> None:
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    os.read(key.fd, 4096)
                    continue
                with self._lock:
                    selector.unregister(key.fd)
                os.close(key.fd)
                try:
                    key.data()
                except Exception:
                    logger.exception("what follows the end of a process failed")
            with self._lock:
                if len(selector.get_map()) == 1:
                    selector.close()
                    os.close(self._wake[0])
                    os.close(self._wake[1])
                    self._selector = None
                    return


def _wait(process: subprocess.Popen[bytes], ended: Ended) -> None:
    """Wait where the system has no descriptors of processes."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    ended()


CHILDREN = Children()
"""Those of all experiments of this process."""
