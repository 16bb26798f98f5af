"""The report of a run: its tables and its timeline."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

from PIL import Image

from fedmon.experiment import ExperimentController
from fedmon.experiment.cli.reports import traces_in
from fedmon.experiment.events import Registered
from fedmon.experiment.journal import NAME, Journal
from fedmon.experiment.types.job import Job
from fedmon.report.diagram import Bar, timeline_png
from tests.experiment.own_types import added
from tests.support.shell_here import document_here, fedmon_here


def test_a_run_of_an_unknown_type_is_reported_on_and_its_recordings_are_named(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME) as journal:
        journal.write([Registered(t=0.0, guid=3, rtype="gone::Type", name="r3")])
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "recording.sqlite").write_text("torn")

    told = fedmon_here("experiment", "report", tmp_path, "--output", tmp_path / "run.html").stdout

    assert "3/recording.sqlite" in told
    assert f"`fedmon report {tmp_path}/3/recording.sqlite` evaluates a recording\n" in told


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


def test_reported_values_are_told_once_by_resource_and_node_and_as_json_those_of_plans_apart(
    ec: ExperimentController,
) -> None:
    monitor = ec.register_resource("fedmon::Monitor")
    job = added(ec, type("Own", (Job,), {"_rtype": "reported::Job"})).guid
    for loss in (1, 2):
        ec.measured(monitor, "loss", loss, "north")
        ec.measured(monitor, "loss", 100 * loss, "south")
        ec.measured(job, "loss", loss, "north")

    told = fedmon_here("experiment", "report", ec.run_dir).stdout
    lines = told.partition("Reported values")[2].splitlines()
    assert [line.split() for line in lines if "loss" in line] == [
        ["1", "north", "loss", "2", "1", "2", "1", "2"],
        ["1", "south", "loss", "2", "100", "200", "100", "200"],
        ["2", "north", "loss", "2", "1", "2", "1", "2"],
    ]
    found = document_here("experiment", "report", ec.run_dir)
    assert ([one["guid"] for one in found["measured"]], [one["guid"] for one in found["reported"]]) == ([1, 1, 2], [2])
