"""A recording whose rows were damaged is read as far as it can be, and no verb fails on it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from fedmon.common.store.recording import Recording
from fedmon.report.findings import find
from fedmon.report.frames import WideTable
from fedmon.report.source import Source
from fedmon.report.subject import choose
from tests.report.tables import T0, recording, samples
from tests.support.databases import execute
from tests.support.shell_here import document_here, fedmon_here

CPU = "host_cpu_busy_ratio"


@pytest.mark.parametrize("processes", [0, 2])
def test_a_sample_that_is_left_out_of_several_tables_and_spans_counts_once(processes: int, tmp_path: Path) -> None:
    gpu = 'gpu_utilization_ratio{gpu="0"}'
    each = [samples({CPU: [0.5] * 300, gpu: [0.5] * 300}, seq=first) for first in (0, 300, 600)]
    path = recording(tmp_path / "a.fmr", *each)
    execute(path, "UPDATE batch SET body = substr(body, 1, 60) WHERE first_seq = 300")

    said = {}
    for view in ("perfmon", "nebula"):
        done = document_here("export", path, "-o", f"{tmp_path}/{view}.csv", "--view", view)
        said[view] = done["damaged_samples"]
    with Source([path]) as source:
        table = WideTable(source, processes=processes)
        for _ in range(2):
            assert sum(rows for rows, _ in table.csv()) == 600

        assert source.damage.samples == 300
    assert said == {"perfmon": 300, "nebula": 300}


@pytest.mark.parametrize(
    ("where", "name", "said"),
    [
        ("first_seq = 300", "gaps", "Known to be lost: 300 damaged in the recording."),
        ("first_seq = 600", "gaps", "Samples are gone for good: 300 damaged in the recording."),
        ("TRUE", "samples", "No sample of these nodes can be read, so there are no findings."),
    ],
)
def test_a_report_tells_damaged_samples_from_those_that_nobody_took(
    where: str, name: str, said: str, tmp_path: Path
) -> None:
    each = [samples({CPU: [0.5] * 300}, seq=first) for first in (0, 300, 600)]
    path = recording(tmp_path / "a.fmr", *each)
    execute(path, f"UPDATE batch SET body = substr(body, 1, 60) WHERE {where}")

    with Source([path]) as source:
        found = {one.name: one.text for one in find(choose(source).read())}

    assert said in found[name]


@pytest.mark.parametrize(
    "damage",
    [
        f"UPDATE batch SET last_seq = {2**62} WHERE id = 1",
        "UPDATE batch SET last_seq = -5 WHERE id = 1",
        "UPDATE batch SET low_t = 'x', high_t = 1e300 WHERE id = 1",
        "UPDATE batch SET low_t = -1e300 WHERE id = 1",
        "UPDATE mark SET t = 'x'",
        "UPDATE mark SET text = x'ff'",
        "UPDATE description SET document = '{'",
        "UPDATE description SET document = 7",
        "UPDATE description SET document = '[]'",
    ],
)
def test_what_is_whole_is_read_all_the_same(damage: str, tmp_path: Path) -> None:
    path = recording(tmp_path / "a.fmr", samples({CPU: [0.5, 0.6] * 2}), samples({CPU: [0.5, 0.6] * 2}, seq=10))
    with Recording(path) as store:
        store.describe("n1", 1, {"hostname": "n1"})
        store.mark("n1", 1, "host", T0 + 1, "something")
    execute(path, damage)

    verbs = ["report --text", "export -o a.csv"]
    if "low_t = 'x'" in damage:  # what is drawn is read by the same code, and drawing takes its time
        verbs.append("plot -o plots")
    said_well(verbs, path)
    assert len((tmp_path / "a.csv").read_text().splitlines()) >= 5


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # what earlier tests left open may be collected here
def test_malformed_names_and_impossible_times_end_no_verb(tmp_path: Path) -> None:
    names = ("gpu_x{", "rapl_energy_joules_total{", "host_temperature_celsius{", "perf_events_total{x", "a/../../b")
    odd = samples({name: [0.5, 0.6, 0.9] for name in (CPU, "job_energy_joules_total", *names)})
    said = samples({name: [1.0, 2.0, 3.0] for name in ("user_value{", "user_step{")}, stream="user")
    clocks = (([T0, 1e299, 1e308], [0.0, 1.0, 2.0]), ([T0] * 3, [0.0, 1.7e308, -1e308]),
              ([T0] * 3, [0.0, 5e-324, 1e-323]))  # fmt: skip
    late = [msgspec.structs.replace(odd, stream=f"job-{at}", t=t, mono=mono) for at, (t, mono) in enumerate(clocks)]
    path = recording(tmp_path / "a.fmr", odd, said, *late)

    views = [f"export -o {view}.csv --view {view}" for view in ("perfmon", "nebula")]
    told = said_well(["report --job 2 -o a.html", "export -o a.csv", "plot --all -o plots", *views], path)
    assert "a.csv: 6 rows\n4 samples are damaged and were left out\n" in told
    assert "other_a_.._.._b_per_node.png" in os.listdir(tmp_path / "plots")


def said_well(verbs: list[str], path: Path) -> str:
    """Return what verbs say, none of which fails."""
    done = [fedmon_here(name, path, *words, cwd=path.parent) for name, *words in map(str.split, verbs)]
    assert [(one.args, one.stderr) for one in done if one.returncode] == []
    return "".join(one.stdout for one in done)
