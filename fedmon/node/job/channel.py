"""What the process that runs a command and the one that measures it tell each other, over two pipes."""

from __future__ import annotations

import contextlib
import os
import select
from typing import Any, Literal

import msgspec

Kind = Literal["ready", "refused", "started", "not-started", "ended", "sampled", "signal"]


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message.

    ``ready`` or ``refused`` comes first, from who measures; ``started`` (with ``pid``, the time ``t`` in Unix seconds,
    and the cgroup's ``path`` and ``folders``) or ``not-started`` answers it. ``ended`` (with the exit ``code``) is
    answered by ``sampled``: until then the command is kept as a zombie, whose last counts can be read; ``switches`` are
    its voluntary and involuntary context switches. ``signal`` names one that came.
    """

    kind: Kind
    text: str = ""
    pid: int = 0
    code: int = 0
    t: float = 0.0
    path: str = ""
    folders: dict[str, str] = {}
    switches: tuple[int, int] | None = None


class Channel:
    """One end of both pipes; `tell` never waits for long and `listen` returns None when nothing came in time."""

    def __init__(self, read: int, write: int) -> None:
        self.descriptor, self._write = read, write
        self._rest = b""
        self.is_closed = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return two ends that hear each other."""
        to_second, to_first = os.pipe(), os.pipe()
        return cls(to_first[0], to_second[1]), cls(to_second[0], to_first[1])

    def tell(self, **message: Any) -> None:
        """Send one message; who is gone does not hear it."""
        with contextlib.suppress(OSError):
            os.write(self._write, msgspec.json.encode(Told(**message)) + b"\n")

    def listen(self, timeout_s: float | None) -> Told | None:
        """Return the next message; None when none came in time, or none will come any more (``is_closed``)."""
        while b"\n" not in self._rest:
            if self.is_closed or not select.select([self.descriptor], [], [], timeout_s)[0]:
                return None
            chunk = os.read(self.descriptor, 65_536)
            self.is_closed = not chunk
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return msgspec.json.decode(line, type=Told)

    @property
    def has_more(self) -> bool:
        """Whether a message was read already and waits here, where no `select` sees it."""
        return b"\n" in self._rest

    def close(self) -> None:
        """Close this end."""
        os.close(self.descriptor)
        os.close(self._write)
