"""A demo that was left running, for whoever wants a federation without making one."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

from tests.support.environment import plain_environment
from tests.support.shell import begun


class KeptDemo:
    """`fedmon demo --keep`; ``document`` is what it told of itself once all of its steps were done."""

    def __init__(self) -> None:
        self._process = begun(
            *("demo", "--keep", "--json"),
            environ=plain_environment(PYTHONUNBUFFERED="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
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
