"""Recordings as tables: one row for each host and time, whatever the nodes measured and their clocks did."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedmon.common.errors import InvalidInputError, NotFoundError, StorageError
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.report import Source, WideTable, frame, learning_curves, plot, save, write_report
from fedmon.report.export.tables import data_frame
from fedmon.report.frames import job_tables
from fedmon.report.rates import Rates
from tests.report.tables import SWITCHES, T0, Column, counted_by_perf, recording, samples

BUSY = "host_cpu_busy_ratio"
RECEIVED = 'host_network_receive_bytes_total{interface="eth0"}'
RATE = 'host_network_receive_bytes_per_second{interface="eth0"}'
RSS = "job_memory_rss_bytes"
LOSS = 'user_value{name="loss"}'
OF_ALICE = 'user_value{name="loss",stream="user-alice"}'
NAN = math.nan


def seconds(table: pd.DataFrame) -> list[float]:
    return [moment.timestamp() - T0 for moment in table["time"]]


def test_streams_of_an_instant_share_a_row_and_other_moments_have_their_own(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "r",
        samples({BUSY: [0.1, 0.2, 0.3]}),
        samples({RSS: [5, 6]}, stream="job-7", seq=0, t=[T0 + 1, T0 + 2]),
        samples({LOSS: [9.5, 8.5]}, stream="user", t=[T0 + 1, T0 + 1.5]),
        samples({LOSS: [7.5]}, stream="user-alice", t=[T0 + 1]),
        documents={"n1": {"hostname": "node1.example", "labels": {"env": "test", "system": "atlas"}}},
    )

    table = frame(path)

    assert list(table.columns) == ["host", "time", "job", "system", "env", BUSY, RSS, OF_ALICE, LOSS]
    assert seconds(table) == [0, 1, 1.5, 2]
    np.testing.assert_array_equal(
        table[[BUSY, RSS, LOSS, OF_ALICE]],
        [[0.1, NAN, NAN, NAN], [0.2, 5, 9.5, 7.5], [NAN, NAN, 8.5, NAN], [0.3, 6, NAN, NAN]],
    )
    assert set(table["host"]) == {"node1.example"}
    assert (set(table["system"]), set(table["env"])) == ({"atlas"}, {"test"})
    assert str(table["time"].dtype) == "datetime64[us, UTC]"


SECONDS = "seconds since T0"
ACCURACY = 'user_value{name="acc"}'
BACK = [T0, T0 + 1, T0 - 3600, T0 - 3599, T0 - 3598]
FOUR = samples({BUSY: [0, 1, 2, 3], RECEIVED: [0, 1, 3, 6], "host_load1": [1, 1, 1, 1]})
TABLES: dict[str, tuple[list[Batch], dict[str, Any], dict[str, list[Any]]]] = {
    "rows bear the job only while it ran": (
        [samples({BUSY: [0.1, 0.2, 0.3, 0.4, 0.5]}), samples({RSS: [5, 6]}, stream="job-7", t=[T0 + 1, T0 + 2]),
         samples({RSS: [7]}, stream="job-7", boot=2, t=[T0 + 4])], {},
        {"job": [None, "7", "7", None, "7", "7"], BUSY: [0.1, 0.2, 0.3, 0.4, 0.5, None],
         RSS: [None, 5, 6, None, None, 7]}),
    "hosts that measure different things have nulls and come in natural order": (
        [samples({BUSY: [0.5, 0.6]}, node="n10", t=[T0 + 2, T0 + 3]), samples({"host_load1": [1, 2]}, node="n2")], {},
        {"host": ["n2", "n2", "n10", "n10"], BUSY: [None, None, 0.5, 0.6], "host_load1": [1, 2, None, None]}),
    "rates come from the monotonic clock and a reset has none": (
        [samples({RECEIVED: [10, 20, None, 60, 5]}, seq=7, t=BACK, mono=[100, 101, 102, 103, 105]),
         samples({RECEIVED: [7, 8]}, boot=2, t=[T0 + 9, T0 + 10], mono=[1, 2])], {},
        {SECONDS: [-3600, -3599, -3598, 0, 1, 9, 10], RECEIVED: [None, 60, 5, 10, 20, 7, 8],
         RATE: [None, 20, None, None, 10, None, 1]}),
    "a clock set back keeps every sample, also at a time that comes twice": (
        [samples({BUSY: [0.1, 0.2, 0.3]}, t=[T0, T0 + 1, T0], mono=[5, 6, 7])], {},
        {SECONDS: [0, 0, 1], BUSY: [0.1, 0.3, 0.2]}),
    "values of one instant share a row unless they contradict each other": (
        [samples({LOSS: [1, None, 3], ACCURACY: [None, 2, None]}, stream="user", t=[T0] * 3)], {},
        {ACCURACY: [2, None], LOSS: [1, 3]}),
    "metrics and times choose": (
        [FOUR], {"metrics": ["host_network_*", "host_load1"], "since_t": T0 + 1, "until_t": T0 + 2},
        {"host_load1": [1, 1], RECEIVED: [1, 3], RATE: [1, 2]}),
    "what perf counted of a job is by its own clock, also in a part of the time": (
        counted_by_perf(), {"metrics": [SWITCHES], "since_t": T0 + 2},
        {"job": ["7"] * 3, SECONDS: [2, 3, pytest.approx(3.4)], SWITCHES: [15_000, 20_000, 25_000],
         'perf_events_per_second{group="software",event="context-switches"}': [5000] * 3,
         'perf_events_total{group="software",event="context-switches",job="7"}': [300, 400, 500],
         'perf_events_per_second{group="software",event="context-switches",job="7"}': [100] * 3}),
    "a job has the values that it and programs reported, and neither values nor rows of another job": (
        [*(samples({RSS: [1, 2]}, stream=f"job-{job}", t=[T0, T0 + 3]) for job in "78"),
         samples({LOSS: [1, None, None], 'user_value{name="loss",job="7"}': [3, None, None],
                  'user_value{name="loss",job="8"}': [3, None, 5]}, stream="user")],
        {"job": "7", "metrics": ["user_*"]},
        {"job": ["7"] * 2, LOSS: [1, None], 'user_value{name="loss",job="7"}': [3, None]}),
    "a job has its own empty values also when another job reported one": (
        [*(samples({RSS: [1, None]}, stream=f"job-{job}") for job in "78"),
         samples({LOSS: [1, None], 'user_value{name="loss",job="8"}': [None, 1]}, stream="user")],
        {"job": "7"}, {"job": ["7"] * 2, LOSS: [1, None], RSS: [1, None]}),
    "counters may come without rates": (
        [FOUR], {"rates": False}, {BUSY: [0, 1, 2, 3], "host_load1": [1] * 4, RECEIVED: [0, 1, 3, 6]}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_what_was_recorded(name: str, tmp_path: Path) -> None:
    batches, options, expected = TABLES[name]
    table = frame(recording(tmp_path / "r", *batches), **options)

    assert set(table.columns) - {"host", "time"} == expected.keys() - {"host", SECONDS}
    table[SECONDS] = seconds(table)
    found = table[[*expected]].astype(object)
    assert found.where(found.notna(), None).to_dict("list") == expected


def test_columns_are_those_of_the_metric_table_in_whatever_order_they_were_recorded(tmp_path: Path) -> None:
    names = [
        'host_cpu_core_busy_ratio{cpu="10"}',
        "zz_plugin_total",
        "zz_plugin_per_second",
        'host_cpu_core_busy_ratio{cpu="2"}',
        BUSY,
        "aa_plugin",
    ]
    first = recording(tmp_path / "a", samples({name: [1, 2] for name in names}), samples({RSS: [1]}, node="n2"))
    second = recording(
        tmp_path / "b", samples({RSS: [1]}, node="n2"), samples({name: [1, 2] for name in reversed(names)})
    )

    with Source([first]) as one, Source([second]) as other:
        expected, actual = WideTable(one).schema.names, WideTable(other).schema.names

    assert expected == actual
    assert actual[2:] == [
        BUSY, names[3], names[0], RSS, "aa_plugin", "zz_plugin_per_second", "zz_plugin_total", "zz_plugin_per_second_2",
    ]  # fmt: skip


def test_files_in_the_home_are_named_with_a_tilde_and_none_replaces_its_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = recording(tmp_path / "r.fmr", samples({BUSY: [0.1, 0.2]}))
    kept = path.read_bytes()

    with pytest.raises(NotFoundError, match="no recorded sample matches the selection; hosts: n1; jobs: none"):
        save(path, tmp_path / "none.csv", metrics=["gpu_*"])
    written = [save("~/r.fmr", "~/x.csv"), *plot("~/r.fmr", "~/plots"), *write_report("~/r.fmr", html="~/r.html")]
    for replace in (lambda: save(path, path, format="csv"), lambda: write_report(path, html="~/r.fmr")):
        with pytest.raises(InvalidInputError, match="is the recording itself"):
            replace()

    assert written == [tmp_path / name for name in ("x.csv", "plots/cpu_load_per_node.png", "r.html")]
    assert (all(each.is_file() for each in written), path.read_bytes()) == (True, kept)
    assert not (tmp_path / "none.csv").exists()


def test_two_recordings_of_the_same_samples_make_each_row_once(tmp_path: Path) -> None:
    first = recording(tmp_path / "a", samples({RECEIVED: [0, 1, 3]}))
    second = recording(tmp_path / "b", samples({RECEIVED: [3, 6, 10]}, seq=2))

    table = frame([first, second])

    assert list(table[RECEIVED]) == [0, 1, 3, 6, 10]
    np.testing.assert_array_equal(table[RATE], [NAN, 1, 2, 3, 4])


@pytest.mark.parametrize("values", [[], [0.5]])
def test_no_sample_and_one_sample_make_a_table(values: list[float], tmp_path: Path) -> None:
    path = recording(tmp_path / "r", *([samples({BUSY: list(values)})] if values else []))

    table, tidy = frame(path), frame(path, tidy=True)

    assert learning_curves(path)._repr_html_() == "<p>No program reported values at two rounds or steps.</p>"
    assert (len(table), len(tidy)) == (len(values), len(values))
    assert list(table.columns)[:2] == ["host", "time"]


def test_a_job_is_its_hosts_while_it_ran(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "r",
        samples({BUSY: [0, 1, 2, 3], RECEIVED: [0, 10, 30, 60]}),
        samples({BUSY: [7, 7, 7, 7]}, node="n2"),
        samples({RSS: [5, 6]}, stream="job-a_1", t=[T0 + 1, T0 + 2]),
        samples({RSS: [8]}, stream="job-b", t=[T0 + 3]),
        documents={"n1": {"jobs": {"a_1": {"job_id": "a.server"}}}},
    )

    with Source([path]) as source:
        table = frame(source, job="a.server")
        both = frame(source)
        save(source, tmp_path / "x.h5", job="a.server")
        with pytest.raises(NotFoundError, match="it has a_1 and b"):
            frame(source, job="c")

    assert list(table[BUSY]) == [1, 2]
    assert list(pd.read_hdf(tmp_path / "x.h5", "wide_a_1")[BUSY]) == [1, 2]
    assert list(table[RATE]) == [10, 20]
    assert set(table["job"]) == {"a_1"}
    assert [name for name in both.columns if name.startswith(RSS)] == [f'{RSS}{{job="a_1"}}', f'{RSS}{{job="b"}}']
    assert "job" not in both.columns


def test_the_tidy_table_has_a_row_for_each_value(tmp_path: Path) -> None:
    path = recording(tmp_path / "r", samples({BUSY: [0.5, None], RECEIVED: [10, 30], "plugin": [None, 4]}))

    tidy = frame(path, tidy=True)

    rows = tidy[["metric", "labels", "unit", "kind", "value", "rate"]].astype(object).where(tidy.notna(), None)
    assert rows.to_numpy().tolist() == [
        [BUSY, None, "ratio", "gauge", 0.5, None],
        ["host_network_receive_bytes_total", 'interface="eth0"', "bytes", "counter", 10, None],
        ["host_network_receive_bytes_total", 'interface="eth0"', "bytes", "counter", 30, 20],
        ["plugin", None, None, None, 4, None],
    ]
    assert set(tidy["stream"]) == {"host"}


def test_a_table_read_by_several_processes_is_the_one_read_here(tmp_path: Path) -> None:
    # given: rows of ten, gaps, a counter that is read every third time and starts anew, and a clock that is set back
    numbers = range(18_000)
    received = [float(at % 9_000 * 7) if at % 3 == 0 and not 4_000 <= at < 5_000 else None for at in numbers]
    moments = [T0 + at - (3_000 if 10_000 <= at < 14_000 else 0) for at in numbers]
    path = tmp_path / "r"
    with Recording(path) as store:
        for first in range(0, len(numbers), 1000):
            part, seq = slice(first, first + 1000), first + (5 if first > 15_000 else 0)
            columns: dict[str, Column] = {RECEIVED: received[part], BUSY: [at % 11 / 11 for at in numbers[part]]}
            mono = [float(at) for at in numbers[part]]
            store.append([samples(columns, node=node, seq=seq, t=moments[part], mono=mono) for node in ("n1", "n2")])
        store.append([samples({RSS: [1.0] * 5}, stream="job-7", mono=[0.0, 1.0, 2.0, 3.0, 4.0])])

    # when: the same plan is read in both ways
    with Source([path]) as source:
        tables = [WideTable(source, processes=processes) for processes in (0, 2)]
        whole = pd.concat([batch.to_pandas() for batch in tables[0].batches()], ignore_index=True)
        csv_here, csv_there = (b"".join(bytes(text) for _, text in table.csv()) for table in tables)
        # and: every rate is that of the whole stream at once
        growth = []
        for node in ("n1", "n2"):
            rates = Rates()
            growth += [rates.of(block, RECEIVED) for block in source.blocks(streams={(node, "host")})]

    assert len(tables[0].plan.spans) > 4
    assert csv_here == csv_there
    np.testing.assert_array_equal(np.sort(whole[RATE].to_numpy()), np.sort(np.concatenate(growth)))


def test_a_process_reads_though_another_copy_of_its_pipe_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recording(tmp_path / "r", samples({BUSY: [0.1, 0.2, 0.3]}))
    with contextlib.ExitStack() as held:

        class Forked(subprocess.Popen[bytes]):
            """A process at whose start another thread forks."""

            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                assert self.stdin is not None
                held.callback(os.close, os.dup(self.stdin.fileno()))

        monkeypatch.setattr(subprocess, "Popen", Forked)

        with Source([path]) as source:
            assert sum(rows for rows, _ in WideTable(source, processes=1).csv()) == 3


def test_a_recording_that_is_gone_before_a_process_reads_it_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = recording(Path(f"{tmp_path}/\udcff.fmr"), samples({BUSY: [0.1, 0.2, 0.3]}))

    with Source(path) as source:
        path.unlink()
        with pytest.raises(StorageError, match=r"udcff\.fmr not found"):
            list(WideTable(source, processes=1).csv())

    assert capfd.readouterr().err == ""


def test_a_process_that_ends_early_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recording(tmp_path / "r", samples({BUSY: [0.1, 0.2, 0.3]}))
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with Source([path]) as source, pytest.raises(StorageError, match="ended early"):
        list(WideTable(source, processes=1).csv())


def test_the_tables_of_a_job_tell_the_sample_of_each_row_have_no_empty_column_and_keep_the_tool_apart(
    tmp_path: Path,
) -> None:
    host: dict[str, list[float | None]] = {"host_load1": [1.0, 2.0, 3.0], "host_fan_rotation_hertz": [None] * 3,
                                           "agent_cpu_seconds_total": [0.0, 0.1, 0.2]}  # fmt: skip
    path = recording(tmp_path / "a.fmr", samples(host), samples({"job_cpus_busy": [0.5, 0.6, 0.7]}, stream="job-7"))

    with Source([path]) as source:
        tables = {table.name: data_frame(table) for table in job_tables(source)}

    assert list(tables["all_metrics"].columns) == ["host", "time", "job", "boot", "seq", "mono", "host_load1",
                                                   "job_cpus_busy"]  # fmt: skip
    assert tables["all_metrics"]["seq"].tolist() == [0, 1, 2]
    assert tables["all_metrics"]["boot"].tolist() == [1, 1, 1]
    assert tables["all_metrics"]["mono"].diff().iloc[1:].tolist() == [1, 1]
    assert list(tables["tool_metrics"].columns)[6:] == ["agent_cpu_seconds_total", "agent_cpu_seconds_per_second"]
