"""JSON lines, OpenMetrics text and Influx lines, each read back by a reader of others."""

from __future__ import annotations

import datetime
import io
import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars
import pyarrow as pa
import pytest
from line_protocol_parser import parse_line
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.series import series
from fedmon.common.metrics.table import METRICS, Kind
from fedmon.report import TidyTable, WideTable
from fedmon.report.export import write
from fedmon.report.export.tables import write_json_lines
from fedmon.report.export.text_series import write_influx, write_openmetrics
from fedmon.report.source import Source
from fedmon.report.views import perfmon
from tests.report.aliases.recorded import T0, RecordedHost
from tests.report.tables import HOSTILE, FixedTable

NAME, SYSTEM = "a\nb", "a\\"
Write = Callable[..., None]


def text_of(path: Path | list[Path], write: Write, *, tidy: bool = False, **options: Any) -> str:
    file = io.BytesIO()
    with Source(path) as source:
        write((TidyTable if tidy else WideTable)(source, **options), file)
    return file.getvalue().decode()


def points(text: str) -> list[dict[str, Any]]:
    return [parse_line(line) for line in text.split("\n")[:-1]]


def families_in(text: str) -> dict[str, Any]:
    found = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # as prometheus_client has it
    return {family.name: family for family in found}


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], list[tuple[float, float]]]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], list[tuple[float, float]]] = {}
    for family in families_in(text).values():
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            found.setdefault(key, []).append((float(sample.timestamp), sample.value))
    return found


def labels(**words: str) -> frozenset[tuple[str, str]]:
    return frozenset(words.items())


def two_hosts(folder: Path) -> list[Path]:
    first = RecordedHost("node-a", labels={"system": "big one", "env": ""})
    second = RecordedHost("node-b", offset_s=2.0)
    for number in range(3):
        disk = series("host_disk_read_bytes_total", device="sda")
        first.tick(float(number), {"host_cpu_busy_ratio": None if number == 1 else 0.25, disk: 10.0 * number})
        second.tick(
            float(number),
            {disk: 7.0, series("gpu_info", gpu="0", uuid="G", name="Card", driver="1"): 1, "host_load1": 1e-9},
            {"job_threads": 4},
        )
    return [host.write(folder / f"{host.node_id}.fmr") for host in (first, second)]


def test_families_are_whole_and_typed_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    text = text_of(two_hosts(tmp_path), write_openmetrics)

    families = families_in(text)
    disk = families["host_disk_read_bytes"]
    assert (disk.type, disk.unit) == ("counter", "bytes")
    assert disk.documentation == METRICS["host_disk_read_bytes_total"].help
    assert families["gpu"].type == "info"
    assert (families["host_cpu_busy_ratio"].type, families["host_cpu_busy_ratio"].unit) == ("gauge", "ratio")
    assert text.count("# TYPE host_disk_read_bytes counter\n") == 1
    assert text.endswith("# EOF\n")
    found = samples(text)
    assert found["host_cpu_busy_ratio", labels(host="node-a", system="big one")] == [(T0, 0.25), (T0 + 2, 0.25)]
    assert found["host_disk_read_bytes_total", labels(host="node-b", job="7", device="sda")] == [
        (T0 + 2 + number, 7.0) for number in range(3)
    ]
    assert found["host_load1", labels(host="node-b", job="7")][0] == (T0 + 2, 1e-9)


def test_every_metric_of_the_table_has_a_family_that_the_standard_allows(tmp_path: Path) -> None:
    host = RecordedHost("node-a")
    for number in range(2):
        names = [series(row.name, **dict.fromkeys(row.labels, "x")) for row in METRICS.values()]
        names += ["app_jobs", "app_jobs_total"]  # both claim the family app_jobs
        host.add(float(number), dict.fromkeys(names, 1.0))
    text = text_of(host.write(tmp_path / "r.fmr"), write_openmetrics)

    families = families_in(text)
    units = {name for name, family in families.items() if family.unit}
    for row in METRICS.values():
        suffix = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(row.kind, "")
        assert families[row.name.removesuffix(suffix)].type == row.kind.value
    assert {"host_memory_used_bytes", "node_energy_kilowatt_hours", "gpu_clock_hertz"} <= units
    assert len(units) > 100
    assert {name for name in families if name.startswith("app")} == {
        "app_jobs",
        "app_jobs_other",
        "app_jobs_per_second",
    }


def test_samples_that_go_back_in_time_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    utc = pa.timestamp("us", tz="UTC")
    schema = pa.schema([("host", pa.string()), ("time", utc), ("host_load1", pa.float64())])
    rows = [
        pa.record_batch([["a", "a", "b"], pa.array([10, 20, 5], utc), [1.0, 2.0, 9.0]], schema=schema),
        pa.record_batch([["a", "a", "a"], pa.array([15, 20, 30], utc), [3.0, 4.0, 5.0]], schema=schema),
    ]  # fmt: skip
    file = io.BytesIO()

    with caplog.at_level(logging.WARNING):
        write_openmetrics(FixedTable(parts=rows), file)

    found = samples(file.getvalue().decode())
    assert [value for _, value in found["host_load1", labels(host="a")]] == [1, 2, 5]
    assert [value for _, value in found["host_load1", labels(host="b")]] == [9]
    assert "2 samples are left out" in caplog.text


def test_openmetrics_is_sorted_beside_its_file_and_not_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    with Source(two_hosts(tmp_path)) as source:
        write(WideTable(source), tmp_path / "x.om")

    assert (tmp_path / "x.om").read_text().endswith("# EOF\n")
    assert not list(tmp_path.glob(".*"))


def test_points_have_host_run_and_series_labels_as_tags_and_metrics_as_fields(tmp_path: Path) -> None:
    found = points(text_of(two_hosts(tmp_path), write_influx, rates=False))

    assert {
        "measurement": "host",
        "tags": {"host": "node-a", "system": "big one"},
        "fields": {"host_cpu_busy_ratio": 0.25},
        "time": 1_700_000_000_250_000_000,
    } in found
    assert [point["time"] for point in found if "host_cpu_busy_ratio" in point["fields"]] == [
        1_700_000_000_250_000_000, 1_700_000_002_250_000_000
    ]  # fmt: skip
    tagged = [point for point in found if point["tags"].get("device") == "sda"]
    assert len(tagged) == 6
    assert [point["fields"] for point in found if point["measurement"] == "job"] == [{"job_threads": 4.0}] * 3


@pytest.mark.parametrize("tidy", [False, True], ids=["wide", "tidy"])
def test_json_lines_are_an_object_for_each_row_with_null_for_what_is_not_known(tmp_path: Path, *, tidy: bool) -> None:
    paths = two_hosts(tmp_path)
    text = text_of(paths, write_json_lines, tidy=tidy)

    rows = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    frame = polars.read_ndjson(io.BytesIO(text.encode()), infer_schema_length=None)
    with Source(paths) as source:
        table = (TidyTable if tidy else WideTable)(source)
        expected = pa.Table.from_batches(table.batches(), table.schema)
    assert len(rows) == len(frame) == expected.num_rows
    assert list(rows[0]) == frame.columns == expected.schema.names
    times = [datetime.datetime.fromisoformat(row["time"]) for row in rows]
    assert times == expected.column("time").to_pylist()
    if not tidy:
        assert [row["host_cpu_busy_ratio"] for row in rows] == [0.25, None, 0.25, None, None, None]


def test_hostile_names_of_interfaces_events_values_jobs_and_runs_survive(tmp_path: Path) -> None:
    host = RecordedHost("node-a", labels={"name": NAME, "system": SYSTEM})
    received, counted = "host_network_receive_bytes_total", "perf_events_total"
    recorded: dict[str, float] = {}
    for number, text in enumerate(HOSTILE):
        recorded[series(received, interface=text)] = number
        recorded[series(counted, group=text, event=text)] = number
        recorded[series("user_value", name=text, job=text)] = number
    host.tick(0.0, recorded, {"job_threads": 1})
    path = host.write(tmp_path / "hostile.fmr")

    openmetrics, lines, rows = (
        text_of(path, write, rates=False) for write in (write_openmetrics, write_influx, write_json_lines)
    )

    found, row = samples(openmetrics), json.loads(rows)
    run = {"host": "node-a", "job": "7", "name": NAME, "system": SYSTEM}
    own = {"host": "node-a", "run_job": "7", "run_name": NAME, "system": SYSTEM}
    assert (row["name"], row["system"]) == (NAME, SYSTEM)
    for number, text in enumerate(HOSTILE):
        assert found[received, labels(interface=text, **run)] == [(T0, number)]
        assert found[counted, labels(group=text, event=text, **run)] == [(T0, number)]
        assert found["user_value", labels(name=text, job=text, **own)] == [(T0, number)]
        assert row[series(received, interface=text)] == number
    told = points(lines)
    assert {unquote(point["tags"]["system"]) for point in told} == {SYSTEM}
    for field, tag in ((received, "interface"), (counted, "event"), ("user_value", "name")):
        values = {unquote(one["tags"][tag]): one["fields"][field] for one in told if field in one["fields"]}
        assert values == {text: float(number) for number, text in enumerate(HOSTILE)}


def test_a_view_has_families_and_fields_after_its_headers(tmp_path: Path) -> None:
    host = RecordedHost("node-a")
    host.tick(0.0, {"host_cpu_busy_ratio": 0.5, 'rapl_energy_joules_total{zone="package-0"}': 2.0}, {"job_threads": 4})
    with Source([host.write(tmp_path / "r.fmr")]) as source:
        table = perfmon.tables(source)[0]
        openmetrics, influx = io.BytesIO(), io.BytesIO()
        write_openmetrics(table, openmetrics)
        write_influx(table, influx)

    assert samples(openmetrics.getvalue().decode())["rapl_package_0_uj", labels(host="node-a", job="7")] == [(T0, 2e6)]
    point = points(influx.getvalue().decode())[0]
    assert point["fields"] == {"CPU usage of the host [%]": 50.0, "RAPL package 0 [uJ]": 2e6, "Number of threads": 4.0}
    assert (point["measurement"], point["tags"]) == ("cpu_metrics", {"host": "node-a", "job": "7"})


@pytest.mark.parametrize("write", [write_openmetrics, write_influx])
def test_time_series_are_not_made_of_a_tidy_table(write: Write, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="wide table"):
        text_of(two_hosts(tmp_path), write, tidy=True)


def test_a_recording_without_a_sample_gives_a_file_that_says_so(tmp_path: Path) -> None:
    path = RecordedHost("node-a").write(tmp_path / "r.fmr")

    written: Mapping[Write, str] = {
        write: text_of(path, write) for write in (write_openmetrics, write_influx, write_json_lines)
    }

    assert list(written.values()) == ["# EOF\n", "", ""]
