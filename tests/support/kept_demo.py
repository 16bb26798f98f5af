"""A demo that was left running, for whoever wants a federation without making one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from tests.support.environment import plain_environment
from tests.support.shell import Foreground, foreground


@contextlib.contextmanager
def kept_demo() -> Iterator[Foreground]:
    """Run `fedmon demo --keep` in a process group of its own; its facts are those once all of its steps were done."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="a demo "))
        environ = plain_environment(PYTHONUNBUFFERED="1", TMPDIR=folder)
        demo = stack.enter_context(foreground("demo", "--keep", environ=environ, start_new_session=True))
        try:
            yield demo
        finally:
            demo.stop()  # also after a failure: its nodes outlive one that is killed
