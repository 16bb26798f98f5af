"""How long each help takes, beside bare Python; `python -m bench.help [RUNS]`.

The least CPU time of many runs: on a quiet machine the wall time is the same, and on a busy one it says nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys

from fedmon.completion import commands


def took_ms(words: list[str], runs: int) -> float:
    """Return the least CPU time of a process, in milliseconds."""
    times = []
    for _ in range(runs):
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, words
        times.append(usage.ru_utime + usage.ru_stime)
    return min(times) * 1000


def main() -> None:
    """Print the slowest helps, and bare Python."""
    runs = int(sys.argv[1]) if sys.argv[1:] else 20
    bare = took_ms(["-c", "pass"], runs)
    lines = ["fedmon", *commands()]
    found = {line: took_ms(["-m", *line.split(), "--help"], runs) for line in lines}
    print(f"bare Python {bare:.0f} ms")
    for line, ms in sorted(found.items(), key=lambda each: -each[1]):
        print(f"{ms:6.0f} ms  {ms / bare:4.1f} x  {line}")


if __name__ == "__main__":
    main()
