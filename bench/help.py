"""How long each help takes: the median of many runs, beside bare Python; `python -m bench.help [RUNS]`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from fedmon.completion import commands


def took_ms(words: list[str], runs: int) -> float:
    """Return the median wall time of a process, in milliseconds."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


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
