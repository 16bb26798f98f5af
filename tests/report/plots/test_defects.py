"""What perfmon's plots get wrong, and what bad input does to these: nothing."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from fedmon.common.metrics.series import series
from fedmon.report import plots
from fedmon.report.source import Source
from tests.report.plots.recordings import drawn, lines, made, panels, recording, samples, texts

CPU = "host_cpu_busy_ratio"
HOSTILE = (
    "", " ", "$", "$$", "$x$", "$\\frac{1}{0}$", "\\", "\\alpha", "_", "_hidden", "__", "^", "{", "}", "{}", "a_b^c",
    "%", "%s%n", "#", "&amp;", "<b>", "</svg>", "<script>alert(1)</script>", '"', "'", "`id`", "$(id)", "; rm -rf /",
    "a\nb", "\r\n", "\t", "\x00", "\x1b[31m", "\u202egnp", "\u200b", "é", "中文", "🎉", "../../etc/passwd", "x" * 5000,
)  # fmt: skip


def test_a_host_without_a_metric_shifts_nothing_defect_38(tmp_path: Path) -> None:
    one = samples({CPU: [0.1, 0.2], "host_load1": [5, 5]}, node="n1")
    two = samples({CPU: [0.3, 0.4]}, node="n2")

    with made(tmp_path / "a", one, two) as found:
        cpu, load = panels(found["cpu_load_per_node"].draw()), panels(found["load_per_node"].draw())

    assert [y for _, y in lines(cpu[0])] == [pytest.approx([10, 20]), pytest.approx([30, 40])]
    assert [y for _, y in lines(load[0])] == [[5, 5]]


def test_the_x_axis_is_time_and_no_category_defect_39(tmp_path: Path) -> None:
    early, late = samples({CPU: [0.1, 0.2]}), samples({CPU: [0.3]}, first=10)

    (axes,) = panels(drawn(tmp_path / "a", "cpu_load_per_node", early, late))

    ((x, _),) = lines(axes)
    assert [moment for moment in x if not math.isnan(moment)] == [0, 1, 10]
    assert list(axes.get_xlim()) == pytest.approx([-0.1, 10.1])


def test_all_nodes_are_joined_by_time_and_not_by_row_defect_39(tmp_path: Path) -> None:
    one = samples({"host_threads": [10] * 4}, node="n1")
    two = samples({"host_threads": [100] * 4}, node="n2", first=20)

    (axes,) = panels(drawn(tmp_path / "a", "threads_all_nodes", one, two))

    ((x, y),) = lines(axes)
    known = [(moment, value) for moment, value in zip(x, y, strict=True) if not math.isnan(value)]
    assert known == [(moment, value) for first, value in ((0, 10), (20, 100)) for moment in range(first, first + 4)]


def test_titles_hold_numbers_and_do_not_grow_defect_40(tmp_path: Path) -> None:
    batches = [samples({"host_threads": [10, 30]}, node=node) for node in ("n1", "n2")]

    with made(tmp_path / "a", *batches) as found:
        first, again = (texts(found["threads_all_nodes"].draw())[:2] for _ in range(2))

    assert first == again == ["Threads, Total over 2 nodes", "threads: mean 40 threads, max 60 threads"]


def test_absent_metrics_leave_no_empty_plot_defect_41(tmp_path: Path) -> None:
    path = recording(tmp_path / "a", samples({CPU: [0.1, 0.2], "job_cpus_busy": [None, None]}))

    with Source([path]) as source:
        written = plots.write(source, tmp_path / "plots")

    assert [one.name for one in written] == ["cpu_load_per_node.png"]
    assert sorted(one.name for one in (tmp_path / "plots").iterdir()) == ["cpu_load_per_node.png"]


# --- odd values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        [0.5],
        [0.0, 0.0, 0.0],
        [0.25] * 50,
        [-1.0, -2.0],
        [0.1] * 20 + [1e300] + [0.1] * 20,
        [-1e300, 1e300],
        [5e-324, 1e-300],
        [None, 0.5, None, 0.5, None, None, 0.5, None],
    ],
    ids=["one", "zeros", "constant", "negative", "outlier", "huge", "tiny", "holes"],
)
def test_odd_values_are_drawn_without_a_warning(values: list[float | None], tmp_path: Path) -> None:
    batch = samples({CPU: values, "host_load1": values, "user_thing": values})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with made(tmp_path / "a", batch) as found:
            drawings = {name: (plots.as_svg(plot), plots.as_png(plot)) for name, plot in found.items()}

    assert list(drawings) == ["cpu_load_per_node", "load_per_node", "other_user_thing_per_node"]


def test_no_sample_is_no_plot(tmp_path: Path) -> None:
    with made(tmp_path / "a") as found:
        assert found == {}


def test_an_outlier_leaves_its_mark_in_the_title(tmp_path: Path) -> None:
    figure = drawn(tmp_path / "a", "load_per_node", samples({"host_load1": [1.0] * 99 + [1e6]}))

    assert texts(figure)[1] == "1 min: mean 10 k, max 1 M"


# --- hostile names ---------------------------------------------------------------------------------------------------


def test_40_hostile_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    assert len(HOSTILE) == 40
    drawn_names: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for first in range(0, 40, 7):
            names = HOSTILE[first : first + 7]
            disks = {
                series("host_disk_busy_seconds_total", device=f"{name}{n}"): [0.0, 1.0] for n, name in enumerate(names)
            }
            with made(tmp_path / f"{first}", samples(disks)) as found:
                plot = found["disk_busy_per_node"]
                assert b"<script>" not in plots.as_svg(plot)
                plots.as_png(plot)
                figure = plot.draw()
            drawn_names += texts(figure)
            assert not any(text.get_parse_math() for text in figure.texts)

    assert {"$x$4", "a_b^c1"} <= set(drawn_names)
    assert not any("\n" in text for text in drawn_names)


def test_hostile_node_and_value_names_lead_to_harmless_files(tmp_path: Path) -> None:
    batches = [
        samples(
            {series("user_value", name=name or "x"): [1.0, 2.0] for name in HOSTILE[:20]}, node=f"n{n}", stream="user"
        )
        for n in range(2)
    ] + [samples({series("user_value", name="../../../tmp/evil"): [1.0]}, node="$(id)", stream="user")]

    with made(tmp_path / "a", *batches) as found:
        written = plots.write_plots([found[name] for name in found if "evil" in name], tmp_path / "plots")
        assert all(
            set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") for name in found
        )

    assert [path.parent for path in written] == [tmp_path / "plots"] * len(written)
    assert written


def test_names_that_make_the_same_file_name_get_files_of_their_own(tmp_path: Path) -> None:
    columns = {series("user_value", name=name): [1.0, 2.0] for name in ("a/b", "a b", "a$b")}

    path = recording(tmp_path / "a", samples(columns, stream="user"))
    with Source([path]) as source:
        written = plots.write(source, tmp_path / "plots")

    assert len({one.name for one in written}) == len(written) == 3


# --- manners ---------------------------------------------------------------------------------------------------------


def test_drawing_changes_no_global_setting_and_needs_no_pyplot(tmp_path: Path) -> None:
    import sys

    before = dict(mpl.rcParams)

    with made(tmp_path / "a", samples({CPU: [0.1, 0.2]})) as found:
        plots.as_svg(found["cpu_load_per_node"])
        plots.as_png(found["cpu_load_per_node"])

    assert dict(mpl.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_the_bands_of_a_day_do_not_reach_over_a_gap(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    parts = [samples({CPU: rng.random(2000).tolist()}, first=first) for first in (0, 4000)]

    (axes,) = panels(drawn(tmp_path / "a", "cpu_load_per_node", *parts))

    bands = [np.asarray(path.vertices)[:, 0] for path in axes.collections[0].get_paths()]
    assert len(bands) == 2
    assert bands[0].max() < 2010
    assert bands[1].min() > 3990
