"""A demo that was left running, for whoever wants a federation without making one."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from tests.support.environment import plain_environment
from tests.support.shell import Foreground, foreground


@contextlib.contextmanager
def kept_demo() -> Iterator[Foreground]:
    """Run `fedmon demo --keep` in a process group of its own; its facts are those once all of its steps were done."""
    environ, ended = plain_environment(PYTHONUNBUFFERED="1"), 128 + signal.SIGTERM
    with foreground("demo", "--keep", environ=environ, code=ended, start_new_session=True) as demo:
        yield demo
