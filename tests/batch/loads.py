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


def burn(folder: Path, cpu_s: float) -> str:
    """Return a command that uses so many seconds of CPU time, then ends; its program is written into the folder."""
    return _command(folder / "burn.py", BURN, cpu_s)


def hold(folder: Path, megabytes: int, seconds: float) -> str:
    """Return a command that holds so many megabytes for a while; its program is written into the folder."""
    return _command(folder / "hold.py", HOLD, megabytes, seconds)


def _command(file: Path, program: str, *words: float) -> str:
    file.write_text(program)
    return " ".join([sys.executable, "-S", str(file), *map(str, words)])
