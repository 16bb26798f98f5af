"""The words in which a collector says that it cannot read its file."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.agent import AgentCollector
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, why
from fedmon.node.collectors.cpu import CpuCollector
from fedmon.node.collectors.load import LoadCollector, UptimeCollector
from fedmon.node.collectors.memory import MemoryCollector

NOW = Instant(t=1_700_000_000.0, mono=1000.0)


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("content", "begins"),
    [
        (None, "not found: "),
        ("", "failed: "),
        ("\x00\xff garbage \n\n x", "failed: "),
        ("cpu", "failed: "),
        ("-", "failed: "),
    ],
    ids=["missing", "empty", "garbage", "cut off", "dash"],
)
@pytest.mark.parametrize("name", ["cpu", "memory", "load", "uptime", "agent"])
def test_what_cannot_be_read_is_named_and_never_a_number(
    tmp_path: Path, name: str, content: str | None, begins: str
) -> None:
    files = ("stat", "meminfo", "loadavg", "uptime", "self/statm", "self/mounts", "net/dev", "diskstats")
    proc = tree(tmp_path, {"stat": "", **dict.fromkeys(files, content)} if content is not None else {"stat": ""})
    collectors: dict[str, Collector] = {
        collector.name: collector
        for collector in (
            CpuCollector(proc=proc, sys=proc),
            MemoryCollector(proc=proc),
            LoadCollector(proc=proc),
            UptimeCollector(proc=proc),
            AgentCollector(proc=proc),
        )
    }
    if content is None:
        (proc / "stat").unlink()
    collector = collectors[name]

    elsewhere = {"agent_cpu_seconds_total", "host_cpu_count"}  # these have sources of their own
    report = collector.probe()
    with pytest.raises((CollectorUnavailableError, ValueError, IndexError)):
        collector.collect(NOW)

    reasons = [reason for metric, reason in report.items() if metric not in elsewhere]
    assert reasons
    assert all(reason is not None and reason.startswith(begins) for reason in reasons)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/proc/x"), "not found: /proc/x"),
        (PermissionError(errno.EACCES, "Permission denied", "/proc/x"), "no permission: /proc/x"),
        (OSError(errno.EIO, "Input/output error", "/proc/x"), "failed: /proc/x: Input/output error"),
        (OSError(errno.EIO, "Input/output error"), "failed: Input/output error"),
    ],
)
def test_the_reason_of_a_failed_read_begins_with_one_of_few_words(error: OSError, reason: str) -> None:
    assert why(error).reason == reason


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "meminfo").mkdir()

    report = MemoryCollector(proc=tmp_path).probe()

    assert report["host_memory_total_bytes"] == f"failed: {tmp_path / 'meminfo'}: Is a directory"


def test_a_file_that_vanished_comes_back(tmp_path: Path) -> None:
    proc = tmp_path / "p"
    load = LoadCollector(proc=proc)

    with pytest.raises(CollectorUnavailableError, match=r"not found: .*loadavg"):
        load.collect(NOW)
    tree(proc, {"loadavg": "1 2 3 4/5 6\n"})

    assert load.collect(NOW).values["host_load1"] == 1.0


def test_a_file_that_goes_while_it_is_read_is_missed_and_one_in_its_place_is_read(tmp_path: Path) -> None:
    proc = tree(tmp_path / "p", {"loadavg": "1 2 3 4/5 6\n"})
    load = LoadCollector(proc=proc)
    load.collect(NOW)

    (proc / "loadavg").unlink()
    with pytest.raises(CollectorUnavailableError, match=r"not found: .*loadavg"):
        load.collect(NOW)
    tree(proc, {"loadavg": "7 2 3 4/5 6\n"})
    load.collect(NOW)
    tree(proc, {"new": "8 2 3 4/5 6\n"})
    (proc / "new").rename(proc / "loadavg")

    assert load.collect(NOW).values["host_load1"] == 8.0
