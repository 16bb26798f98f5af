"""A real VictoriaMetrics for tests, on a fresh port and in a folder of the test."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.support.ports import free_port
from tests.support.requirements import require
from tests.support.waiting import wait_until


class Store:
    """A VictoriaMetrics on a free port of this machine; `kill` and `start` keep port and folder.

    Its paths begin with ``prefix``. ``options`` are further words of its command line at the next `start`.
    """

    def __init__(self, folder: Path, *, prefix: str = "", options: Sequence[str] = ()) -> None:
        program = shutil.which("victoria-metrics")
        require(program, "victoria-metrics is not installed")
        self.port, self.options = free_port(), options
        self.url = f"http://127.0.0.1:{self.port}{prefix}"
        self._command = [
            str(program),
            f"-storageDataPath={folder}",
            f"-httpListenAddr=127.0.0.1:{self.port}",
            f"-http.pathPrefix={prefix}",
            "-retentionPeriod=10y",
            "-dedup.minScrapeInterval=1ms",
            "-memory.allowedBytes=64MB",
            "-search.latencyOffset=0s",
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen([*self._command, *self.options], stderr=subprocess.DEVNULL)
        wait_until(self._answers, what="the store")

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def values(self, series: str) -> dict[int, float]:
        """Return what the store holds of one series, by Unix time in milliseconds; no time may come twice."""
        found = self._get("/api/v1/export", {"match[]": series, "start": "0", "end": "4102444800"})
        lines = [msgspec.json.decode(line) for line in found.splitlines() if line]
        assert all(len(set(line["timestamps"])) == len(line["timestamps"]) for line in lines)
        return {t: value for line in lines for t, value in zip(line["timestamps"], line["values"], strict=True)}

    def series(self, match: str) -> list[dict[str, str]]:
        """Return the labels of the series that match."""
        found: dict[str, Any] = msgspec.json.decode(self._get("/api/v1/series", {"match[]": match, "start": "0"}))
        return list(found["data"])

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the answer to a query from five minutes ago on, as Grafana asks."""
        asked = {
            "query": expression,
            "start": f"{time.time() - 300:.0f}",
            "end": f"{time.time() + 15:.0f}",
            "step": "5",
        }
        found: dict[str, Any] = msgspec.json.decode(self._get("/api/v1/query_range", asked))
        return list(found["data"]["result"])

    def label_values(self, label: str, match: str) -> list[str]:
        """Return the values of one label of the series that match."""
        return sorted({one[label] for one in self.series(match) if label in one})

    def imports(self) -> int:
        """Return how many bodies it was sent since its start."""
        lines = self._get("/metrics", {}).decode().splitlines()
        return sum(int(line.split()[-1]) for line in lines if line.startswith(_IMPORTS))

    def _answers(self) -> bool:
        try:
            return self._get("/health", {}) == b"OK"
        except OSError:
            return False

    def _get(self, path: str, query: dict[str, str]) -> bytes:
        # What was imported a moment ago is not found before a flush.
        if query:
            urllib.request.urlopen(f"{self.url}/internal/force_flush", timeout=60).close()
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=60) as answer:
            return bytes(answer.read())


_IMPORTS = 'vm_http_requests_total{path="/api/v1/import"'
