"""Makes the pictures and the report of `docs/gallery.md`; run `python -m tests.docs.gallery`, it takes two minutes.

Three hospitals of `fedmon demo` measure this machine, while it computes, writes and rests; `fedmon record` keeps what
they say. Only metrics without a path or a device's serial number in a label are recorded.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.environment import stranger_environment
from tests.support.kept_demo import kept_demo

FOLDER = Path(__file__).parents[2] / "docs/gallery"
SECONDS = 75
METRICS = ("host_cpu_busy_ratio", "host_cpu_seconds_total", "host_cpu_count", "host_memory_*_bytes", "host_load*",
           "host_context_switches_total", "host_disk_*_bytes_total", "host_network_*_bytes_total",
           "host_pressure_seconds_total", "agent_cpu_seconds_total", "agent_memory_rss_bytes",
           "agent_collector_seconds", "agent_ticks_missed_total")  # fmt: skip
SHOWN = ("cpu_load", "cpu_time", "memory", "disk_traffic", "pressure", "load")
"""The begins of the names of files."""
LOAD = """
import hashlib, pathlib, sys, threading, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    rest = time.monotonic() + 15
    while time.monotonic() < rest:
        hashlib.sha256(bytes(10_000_000)).digest()
        pathlib.Path(sys.argv[2]).write_bytes(bytes(20_000_000))
    threading.Event().wait(10)
"""


def main() -> None:
    """Make everything anew."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedmon-gallery-") as name:
        folder = Path(name)
        with kept_demo() as demo, load(folder / "written"):
            # Without the history of the training that the demo begins with, at other intervals.
            fedmon("record", "store.fmr", "--for", str(SECONDS), "--interval", "0.5", "--history", "0",
                   *(word for metric in METRICS for word in ("-m", metric)),
                   url=demo.facts["broker"]["url"], folder=folder)  # fmt: skip
        fedmon("plot", "store.fmr", "--output", "plots", url="", folder=folder)
        fedmon("report", "store.fmr", "--output", "report.html", "--pdf", "report.pdf", url="", folder=folder)
        found = [next((folder / "plots").glob(f"{one}_*.png")) for one in SHOWN]
        for old in FOLDER.glob("*.png"):
            old.unlink()
        for path in found:
            keep(path)
        keep(folder / "report.html")
        keep(folder / "report.pdf")


@contextmanager
def load(path: Path) -> Iterator[None]:
    """Keep this machine busy now and then."""
    process = subprocess.Popen([sys.executable, "-c", LOAD, str(SECONDS), str(path)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def fedmon(*words: str, url: str, folder: Path) -> None:
    """Run one verb in a folder, where its settings are."""
    subprocess.run(
        [sys.executable, "-m", "fedmon", *words],
        cwd=folder, env=stranger_environment(url or "mqtt://localhost", folder), timeout=SECONDS + 120, check=True,
    )  # fmt: skip


def keep(path: Path) -> None:
    """Put a file into the gallery."""
    content = path.read_bytes()
    (FOLDER / path.name).write_bytes(content)
    print(f"{FOLDER.name}/{path.name}: {len(content)} bytes, SHA-256 {hashlib.sha256(content).hexdigest()[:12]}")


if __name__ == "__main__":
    main()
