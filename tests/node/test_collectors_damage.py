"""Whatever a file of /proc or /sys holds: nothing stops, nothing is invented, everything is named."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedmon.common.metrics.sample import Instant, Sample
from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS, Kind
from fedmon.node.collectors import host_collectors
from fedmon.node.collectors.base import Roots, Why
from fedmon.node.measure.sampler import StreamReader
from tests.support.machine_tree import machine_tree

WORDS = tuple(why.value for why in Why)
NAMES = ("name", "_label", "link_layer")
"""Files that give a device another name when they are damaged."""
NOT_DAMAGED = (
    *("mlx5_1", "packets", "link_downed", "xmit", "errors", "cpu1/", "cpu2/", "cpu3/", "node1/"),
    *("hwmon1/", "hwmon2/", "temp2_input", "temp2_label", "pressure/cpu", "pressure/memory"),
)
"""Files that are read by the same lines as one that is damaged."""
UNREAD_LATER = (
    "cache",
    "topology",
    "block",
    "class/net",
    "dmi",
    "hca_type",
    "osrelease",
    "cgroup",
    "mounts",
    "cpulist",
)
"""Files of the description, which is made once and has tests of its own."""


class Machine:
    """The collectors of a tree, read with time enough between two samples for every lane."""

    def __init__(self, roots: Roots) -> None:
        self._reader = StreamReader([one for one in host_collectors(roots=roots, per_core=True) if one.name != "agent"])
        self._reader.probe()
        self._seconds = itertools.count(1000, 100)

    def sample(self) -> Sample:
        return self._reader.read(Instant(t=1_700_000_000.0, mono=float(next(self._seconds))))

    def report(self) -> dict[str, str | None]:
        return self._reader.capabilities()

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return machine_tree(tmp_path)


def files_of(roots: Roots) -> list[Path]:
    found = [path for root in (roots.proc, roots.sys) for path in sorted(root.rglob("*")) if path.is_file()]
    return [path for path in found if not any(part in str(path) for part in (*UNREAD_LATER, *NOT_DAMAGED))]


def cut_off(text: bytes) -> Iterator[bytes]:
    steps = max(1, len(text) // 7)
    yield from (text[:length] for length in (*range(1, len(text) - 1, steps), len(text) - 2) if length > 0)


def replaced(*texts: bytes) -> Callable[[bytes], Iterator[bytes]]:
    return lambda _text: iter(texts)


def with_numbers(number: bytes) -> Callable[[bytes], Iterator[bytes]]:
    return lambda text: iter([re.sub(rb"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", number, text)])


DAMAGES: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "empty": replaced(b"", b"\n", b"\n\n\n"),
    "garbage": replaced(b"\x00\xff garbage \n\n x", b"nan nan\n", b":::\n" * 9, bytes(range(256))),
    "of great length": replaced(b"x" * 70_000, b"y" * 3000 + b"\n"),
    "negative": with_numbers(b"-5"),
    "huge": with_numbers(b"9" * 40),
    "of another kind": with_numbers(b"N/A"),
}


def assert_invents_nothing(sample: Sample, healthy: Sample, path: Path) -> None:
    """Every value is that of the healthy machine, or None with a reason."""
    is_name = path.name.endswith(NAMES)
    for key, value in sample.values.items():
        assert len(key) < 1000, path
        if value is None:
            assert sample.reasons[key].startswith(WORDS), (path, key, sample.reasons[key])
            assert len(sample.reasons[key]) < 500, path
        elif METRICS[metric_name(key)].kind is not Kind.INFO and not (is_name and key not in healthy.values):
            assert value == healthy.values[key], (path, key)


def assert_names_everything(sample: Sample, healthy: Sample, path: Path) -> None:
    """Every series that a running machine gave before is still there, or None with a reason."""
    for key, value in healthy.values.items():
        if METRICS[metric_name(key)].kind is not Kind.INFO:
            assert key in sample.values, (path, key)
            assert sample.values[key] is not None or value is None or sample.reasons[key], (path, key)


def test_the_healthy_machine_is_measured_whole(roots: Roots) -> None:
    machine = Machine(roots)
    sample = machine.sample()
    machine.close()

    unknown = {key for key, value in sample.values.items() if value is None}

    assert len(sample.values) > 150
    assert {metric_name(key) for key in unknown} == {
        "host_cpu_busy_ratio",
        "host_cpu_core_busy_ratio",
        "host_temperature_celsius",  # the sensor that says it is broken
        "host_filesystem_size_bytes",
        "host_filesystem_free_bytes",
        "host_filesystem_available_bytes",
    }


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_with_other_content_costs_only_what_it_holds(roots: Roots, damage: str) -> None:
    temperatures = re.compile(r"temp\d+_input")  # may well be below zero
    paths = [path for path in files_of(roots) if damage != "negative" or not temperatures.fullmatch(path.name)]

    lost = damaged(roots, paths, DAMAGES[damage])

    assert lost > 100


def test_a_file_that_is_cut_off_gives_no_number_that_may_be_a_part_of_one(roots: Roots) -> None:
    # A file of one line is read in one piece; what can be cut off are tables.
    tables = [path for path in files_of(roots) if path.read_bytes().count(b"\n") > 1]

    lost = damaged(roots, tables, cut_off)

    assert len(tables) >= 9
    assert lost > 100


@pytest.mark.parametrize("kind", ["missing", "a folder", "a pipe that nobody writes to", "a link to nowhere"])
def test_something_else_in_the_place_of_a_file_costs_only_what_the_file_holds(roots: Roots, kind: str) -> None:
    healthy = first_sample(roots)[0]
    for path in files_of(roots):
        if path.name.endswith("_fault"):
            continue  # a sensor without one is not broken
        text = path.read_bytes()
        path.unlink()
        if kind == "a folder":
            path.mkdir()
        elif kind == "a pipe that nobody writes to":
            os.mkfifo(path)
        elif kind == "a link to nowhere":
            path.symlink_to("/nowhere")
        sample, report = first_sample(roots)
        if kind == "a folder":
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(text)

        assert_invents_nothing(sample, healthy, path)
        if path.is_relative_to(roots.proc):
            for key in healthy.values.keys() - sample.values.keys():
                if METRICS[metric_name(key)].kind is Kind.INFO:
                    continue  # the label of the model is empty now
                reason = report.get(key) or report[metric_name(key)]
                assert reason is not None, (path, key)
                assert reason.startswith(WORDS), (path, key)
    assert first_sample(roots)[0] == healthy


def first_sample(roots: Roots) -> tuple[Sample, dict[str, str | None]]:
    """Return the first sample of a machine that was just started, and what it says that it measures."""
    machine = Machine(roots)
    sample, report = machine.sample(), machine.report()
    machine.close()
    return sample, report


def damaged(roots: Roots, paths: list[Path], damage: Callable[[bytes], Iterator[bytes]]) -> int:
    """Damage one file after the other, and mend it again; return how many values were lost."""
    machine = Machine(roots)
    machine.sample()
    healthy = machine.sample()
    lost = 0
    for path in paths:
        text = path.read_bytes()
        for other in damage(text):
            path.write_bytes(other)
            sample = machine.sample()
            assert_invents_nothing(sample, healthy, path)
            assert_names_everything(sample, healthy, path)
            lost += sum(value is None for value in sample.values.values())
            path.write_bytes(text)
            machine.sample()
        again = machine.sample()
        assert (again.values, again.reasons) == (healthy.values, healthy.reasons), path
    machine.close()
    return lost
