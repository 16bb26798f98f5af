"""The report of a run: its tables and its timeline."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from fedmon.experiment import ExperimentController
from fedmon.experiment.cli.reports import report_run, reported_in, traces_in
from fedmon.experiment.events import Registered
from fedmon.experiment.journal import NAME, Journal
from fedmon.report.diagram import Bar, timeline_png


def test_a_run_of_an_unknown_type_is_reported_on_and_its_recordings_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(tmp_path / NAME) as journal:
        journal.write([Registered(t=0.0, guid=3, rtype="gone::Type", name="r3")])
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "recording.sqlite").write_text("torn")
    (tmp_path / "3" / "scalars").write_text('{"node":"a","t":1,"values":{"loss":0.5,"lost":null}}')

    report_run(tmp_path, output=tmp_path / "run.html", as_json=False)

    told = capsys.readouterr().out
    assert "3/recording.sqlite" in told
    assert "fedmon report PATH evaluates a recording" in told
    assert "lost" not in told


def test_folders_that_come_and_go_in_a_run_that_goes_on_cost_no_report(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "stdout").write_text("hello")
    with subprocess.Popen(["sh", "-c", "while :; do mkdir -p a/b/c; rm -r a; done"], cwd=tmp_path / "3") as process:
        try:
            found = [[one.path for one in traces_in(tmp_path, [3])] for _ in range(1_000)]
        finally:
            process.kill()

    assert found == [["3/stdout"]] * 1_000


def test_a_timeline_is_in_the_colours_of_the_states() -> None:
    bar = Bar(start_s=1.0, end_s=9000.0, state="STARTED", colour="#aee3ae")

    image = Image.open(io.BytesIO(timeline_png([("1 $one$", [bar]), ("2", [])]))).convert("RGB")

    assert (0xAE, 0xE3, 0xAE) in {colour for _, colour in image.getcolors(1 << 24) or []}
    assert timeline_png([]).startswith(b"\x89PNG")


def test_damaged_lines_of_what_plans_reported_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    rows = [f'{{"node":"{node}","t":{at},"values":{{"loss":{1 / at}}}}}' for at in (1, 2, 4) for node in "ab"]
    (tmp_path / "3" / "scalars").write_text("\n".join([*rows, "no JSON", '{"values":{"loss":"x"}}']))

    first, second = reported_in(tmp_path, traces_in(tmp_path, [3]))

    assert (first.node, second.node, first.count, first.last, first.low) == ("a", "b", 3, 0.25, 0.25)


def test_values_of_two_nodes_that_conditions_used_are_two_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExperimentController("e", tmp_path) as ec:
        monitor = ec.register_resource("fedmon::Monitor")
        for loss in (1, 2):
            ec.measured(monitor, "loss", loss, "north")
            ec.measured(monitor, "loss", 100 * loss, "south")

    report_run(Path(ec.run_dir), output=None, as_json=False)

    lines = capsys.readouterr().out.partition("Values that conditions used")[2].splitlines()
    assert [line.split() for line in lines if "loss" in line] == [
        ["1", "north", "loss", "2", "1", "2", "1", "2"],
        ["1", "south", "loss", "2", "100", "200", "100", "200"],
    ]
