"""A demo that was left running, for whoever wants a federation without making one."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.node_process import plain_environment


class KeptDemo:
    """`fedmon demo --keep`; ``document`` is what it told of itself once all of its steps were done."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedmon", "demo", "--keep", "--json"],
            env=plain_environment(PYTHONUNBUFFERED="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        self.document: dict[str, Any] = json.loads("".join(lines))

    @property
    def group(self) -> int:
        """The process group that all of its processes are in."""
        return self._process.pid

    @property
    def url(self) -> str:
        """The URL of its broker."""
        return str(self.document["broker"]["url"])

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)


@contextlib.contextmanager
def kept_demo() -> Iterator[KeptDemo]:
    """Run a demo, and end it."""
    demo = KeptDemo()
    try:
        yield demo
    finally:
        demo.stop()


def researcher_environment(url: str, folder: Path) -> dict[str, str]:
    """Return the environment of a researcher who follows the documentation."""
    return plain_environment(FEDMON_BROKER_URL=url, FEDMON_RESEARCHER_FOLDER=str(folder))
