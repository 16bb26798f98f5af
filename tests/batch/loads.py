"""Programs whose use of the machine is known."""

from __future__ import annotations

import sys
from pathlib import Path

BURN = """\
import sys, time
end = float(sys.argv[1])
while time.process_time() < end:
    pass
"""
HOLD = """\
import signal, sys
held = bytearray(int(sys.argv[1]) * 1_000_000)
held[::4096] = b"x" * len(held[::4096])
signal.sigtimedwait([signal.SIGUSR2], float(sys.argv[2]))
"""


class Loads:
    """Writes the programs into a folder and tells the command lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "burn.py").write_text(BURN)
        (folder / "hold.py").write_text(HOLD)

    def burn(self, cpu_s: float) -> str:
        """Return a command that uses so many seconds of CPU time, then ends."""
        return f"{sys.executable} -S {self._folder}/burn.py {cpu_s}"

    def hold(self, megabytes: int, seconds: float) -> str:
        """Return a command that holds so many megabytes for a while."""
        return f"{sys.executable} -S {self._folder}/hold.py {megabytes} {seconds}"
