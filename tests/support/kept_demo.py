"""A demo that was left running, for whoever wants a federation without making one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.support.environment import plain_environment
from tests.support.shell import Foreground, foreground


@contextlib.contextmanager
def kept_demo() -> Iterator[Foreground]:
    """Run `fedmon demo --keep` in a process group of its own; its facts are those once all of its steps were done."""
    environ = plain_environment(PYTHONUNBUFFERED="1")
    with foreground("demo", "--keep", environ=environ, start_new_session=True) as demo:
        try:
            yield demo
        finally:
            demo.stop()  # also after a failure: its nodes outlive one that is killed
