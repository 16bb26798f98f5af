"""The numbers behind figures: what is drawn is what was measured."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedmon import report
from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.series import series
from fedmon.report import plots
from fedmon.report.source import Source
from tests.report.plots.recordings import T0, drawn, lines, made, panels, recording, samples, texts

MIB = 1024.0**2
CPU = "host_cpu_busy_ratio"
READ, WRITTEN = (series(f"host_disk_{what}_bytes_total", device="sda") for what in ("read", "written"))
NAN = math.nan


def test_a_gauge_is_drawn_in_percent_over_seconds_with_its_mean_and_its_maximum(tmp_path: Path) -> None:
    figure = drawn(tmp_path / "a", "cpu_load_per_node", samples({CPU: [0.1, 0.2, 0.6]}))

    (axes,) = panels(figure)
    ((x, y),) = lines(axes)
    assert x == [0, 1, 2]
    assert y == pytest.approx([10, 20, 60])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("seconds since 2026-11-21 10:00:00 UTC", "%")
    assert texts(figure)[:2] == ["CPU load", "busy: mean 30 %, max 60 %"]


def test_a_counter_is_drawn_as_its_growth_in_a_unit_that_people_read(tmp_path: Path) -> None:
    read = [number * 2 * MIB for number in range(4)]

    figure = drawn(tmp_path / "a", "disk_traffic_per_node", samples({READ: read, WRITTEN: [0, 0, 0, 0]}))

    (axes,) = panels(figure)
    assert lines(axes) == [([1, 2, 3], [2, 2, 2]), ([1, 2, 3], [0, 0, 0])]
    assert axes.get_ylabel() == "MiB/s"
    assert {"read", "written", "read: mean 2 MiB/s, max 2 MiB/s"} <= set(texts(figure))


def test_what_is_small_beside_the_rest_is_still_told_in_its_own_unit(tmp_path: Path) -> None:
    columns = {READ: [0.0, 1024.0, 2048.0], WRITTEN: [0.0, 1024.0**3, 2 * 1024.0**3]}

    found = texts(drawn(tmp_path / "a", "disk_traffic_per_node", samples(columns)))

    assert "read: mean 1 KiB/s, max 1 KiB/s" in found
    assert {"GiB/s", "≈ 0"} <= set(found)


def test_no_figure_shows_what_was_not_measured(tmp_path: Path) -> None:
    with made(tmp_path / "a", samples({CPU: [0.1, 0.2], "host_load1": [None, None]})) as found:
        assert list(found) == ["cpu_load_per_node"]


def test_errors_are_drawn_where_there_were_some_or_where_they_are_asked_for(tmp_path: Path) -> None:
    name = series("host_network_receive_errors_total", interface="eth0")
    other = series("host_network_transmit_errors_total", interface="eth0")
    none, some = samples({name: [5, 5, 5]}), samples({name: [5, 5, 6], other: [0, 0, 0]})

    with made(tmp_path / "a", none) as without, made(tmp_path / "b", some) as with_some:
        assert (list(without), list(with_some)) == ([], ["network_errors_per_node"])
        assert len(lines(panels(with_some["network_errors_per_node"].draw())[0])) == 1
    with made(tmp_path / "c", none, zeros=True) as asked:
        assert list(asked) == ["network_errors_per_node"]


def test_a_gap_stays_a_gap(tmp_path: Path) -> None:
    first, second = samples({CPU: [0.1] * 5}), samples({CPU: [0.2] * 5}, first=60)

    (axes,) = panels(drawn(tmp_path / "a", "cpu_load_per_node", first, second))

    ((x, y),) = lines(axes)
    assert [number for number, value in enumerate(y) if math.isnan(value)] == [5]
    assert (x[4], x[6]) == (4, 60)


def test_many_samples_are_a_mean_line_in_a_band_of_lowest_and_highest(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    values = rng.random(5000)
    values[1234], values[4321] = 3.0, -1.0

    figure = drawn(tmp_path / "a", "cpu_load_per_node", samples({CPU: values.tolist()}))

    (axes,) = panels(figure)
    ((_, mean),) = lines(axes)
    band = axes.collections[0].get_paths()[0].vertices
    assert len(mean) <= 400
    assert np.max(np.asarray(band)[:, 1]) == pytest.approx(300)
    assert np.min(np.asarray(band)[:, 1]) == pytest.approx(-100)
    assert 40 < np.mean(mean) < 60
    assert f"mean {np.mean(values) * 100:.1f} %, max 300 %" in texts(figure)[1]
    assert "band: lowest to highest value" in texts(figure)[1]


def test_a_recording_of_a_day_has_times_of_day(tmp_path: Path) -> None:
    (axes,) = panels(drawn(tmp_path / "a", "cpu_load_per_node", samples({CPU: [0.5] * 25}, step_s=3600.0)))

    assert axes.get_xlabel() == "21 November to 22 November 2026, UTC"
    assert "12:00" in [label.get_text() for label in axes.get_xticklabels()]


# --- several nodes -------------------------------------------------------------------------------------------------


def test_nodes_are_joined_by_time_although_their_clocks_differ_and_one_began_later(tmp_path: Path) -> None:
    one = samples({READ: [number * 100 * MIB for number in range(10)]}, node="n1", step_s=10)
    two = samples({READ: [number * 300 * MIB for number in range(5)]}, node="n2", step_s=10, first=5, late_s=2.0)

    (axes,) = panels(drawn(tmp_path / "a", "disk_traffic_all_nodes", one, two))

    ((x, y),) = lines(axes)
    assert [round(moment) for moment in x] == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    # The second node's first rate is that of its second sample, at 62 s by its clock.
    assert y == pytest.approx([10, 10, 10, 10, 10, 40, 40, 40, 40])


def test_an_average_is_that_of_the_nodes_that_told_and_its_band_reaches_from_the_lowest_to_the_highest(
    tmp_path: Path,
) -> None:
    batches = [samples({CPU: [level] * 6}, node=f"n{number}") for number, level in enumerate((0.1, 0.2, 0.6))]

    figure = drawn(tmp_path / "a", "cpu_load_all_nodes", *batches)

    (axes,) = panels(figure)
    assert lines(axes)[0][1] == pytest.approx([30] * 6)
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]
    assert (band.min(), band.max()) == (pytest.approx(10), pytest.approx(60))
    assert texts(figure)[0] == "CPU load, Average over 3 nodes"


def test_a_total_is_not_known_while_a_node_is_silent(tmp_path: Path) -> None:
    whole = samples({READ: [number * MIB for number in range(30)]}, node="n1")
    parts = [
        samples({READ: [float(first + number) * MIB for number in range(8)]}, node="n2", first=first)
        for first in (0, 22)
    ]

    (axes,) = panels(drawn(tmp_path / "a", "disk_traffic_all_nodes", whole, *parts))

    ((x, y),) = lines(axes)
    known = {round(moment): value for moment, value in zip(x, y, strict=True) if not math.isnan(value)}
    assert not any(9 <= moment <= 20 for moment in known)
    assert all(value == pytest.approx(2) for value in known.values())
    assert any(math.isnan(value) for value in y)


def test_hosts_may_measure_different_things(tmp_path: Path) -> None:
    one, two = samples({CPU: [0.5, 0.5]}, node="n1"), samples({"host_load1": [1, 2]}, node="n2")

    with made(tmp_path / "a", one, two) as found:
        assert found["cpu_load_all_nodes"].title == "CPU load, Average over 1 node"
        assert [len(lines(axes)) for axes in panels(found["load_per_node"].draw())] == [1]


def test_one_node_has_no_plots_of_all_nodes(tmp_path: Path) -> None:
    with made(tmp_path / "a", samples({CPU: [0.5, 0.5]})) as found:
        assert list(found) == ["cpu_load_per_node"]


# --- many lines ----------------------------------------------------------------------------------------------------


def test_of_64_cores_the_busiest_are_shown_and_the_others_as_one(tmp_path: Path) -> None:
    cores = {series("host_cpu_core_busy_ratio", cpu=str(cpu)): [cpu / 100, cpu / 100] for cpu in range(64)}

    figure = drawn(tmp_path / "a", "cpu_cores_per_node", samples(cores))

    (axes,) = panels(figure)
    assert len(lines(axes)) == 7
    named = [text for text in texts(figure) if text.startswith("CPU ") or "others" in text]
    assert named == ["CPU load of each core", *(f"CPU {cpu}" for cpu in range(58, 64)), "58 others, average"]
    assert lines(axes)[-1][1] == pytest.approx([np.mean(np.arange(58))] * 2)


def test_ten_nodes_with_two_lines_each_are_two_panels(tmp_path: Path) -> None:
    growth = [0.0, MIB, 2 * MIB]
    batches = [samples({READ: growth, WRITTEN: growth}, node=f"node-{number}") for number in range(10)]

    figure = drawn(tmp_path / "a", "disk_traffic_per_node", *batches)

    assert [len(lines(axes)) for axes in panels(figure)] == [7, 7]
    assert [text for text in texts(figure) if text in ("read", "written")] == ["read", "written"]


def test_the_others_of_many_nodes_are_on_the_scale_of_one(tmp_path: Path) -> None:
    batches = [samples({CPU: [0.5, number / 20]}, node=f"node-{number}") for number in range(12)]

    figure = drawn(tmp_path / "a", "cpu_load_per_node", *batches)

    (axes,) = panels(figure)
    assert "6 others, average" in texts(figure)
    assert lines(axes)[-1][1] == pytest.approx([50, 12.5])
    assert axes.get_ylim()[1] < 100


def test_gpus_of_a_few_nodes_have_a_panel_a_node(tmp_path: Path) -> None:
    gpus = {series("gpu_utilization_ratio", gpu=str(gpu)): [0.5, 0.6] for gpu in range(4)}

    figure = drawn(tmp_path / "a", "gpu_load_per_node", *(samples(gpus, node=node) for node in ("a", "b")))

    assert [len(lines(axes)) for axes in panels(figure)] == [4, 4]
    assert texts(figure).count("GPU 3") == 2


def test_a_limit_is_drawn_with_what_it_limits_unless_it_is_far_away(tmp_path: Path) -> None:
    near = {"job_memory_rss_bytes": [MIB, MIB], "job_memory_limit_bytes": [2 * MIB] * 2}
    far = near | {"job_memory_limit_bytes": [2.0**62] * 2}

    close = drawn(tmp_path / "a", "job_memory_per_node", samples(near, stream="job-1"))
    away = drawn(tmp_path / "b", "job_memory_per_node", samples(far, stream="job-1"))

    assert "limit" in texts(close)
    assert "limit" not in texts(away)
    assert panels(away)[0].get_ylim()[1] < 2


def test_rapl_zones_are_added_up_by_what_they_measure_and_parts_of_a_package_are_no_part_of_its_sum(
    tmp_path: Path,
) -> None:
    zones = {"package-0": 10.0, "package-1": 20.0, "package-0-core": 5.0, "package-1-core": 6.0, "package-0-dram": 2.0}
    columns = {
        series("rapl_energy_joules_total", zone=zone): [watts * second for second in range(3)]
        for zone, watts in zones.items()
    }

    (axes,) = panels(drawn(tmp_path / "a", "rapl_power_per_node", samples(columns)))

    assert [y for _, y in lines(axes)] == [pytest.approx([watts, watts]) for watts in (30, 11, 2)]
    assert axes.get_ylabel() == "W"


# --- what programs report, and what happens --------------------------------------------------------------------------


def test_training_values_are_drawn_over_time_and_over_their_steps(tmp_path: Path) -> None:
    loss, step = series("user_value", name="loss"), series("user_step", name="loss")
    batches = [
        samples({loss: [value], step: [at]}, stream="user", first=first)
        for first, (value, at) in zip((0, 7, 9, 40), ((2.0, 0), (1.5, 10), (1.2, 20), (1.0, 0)), strict=True)
    ]

    with made(tmp_path / "a", *batches) as found:
        over_time, over_steps = (
            found[name].draw() for name in ("reported_loss_per_node", "reported_by_step_loss_per_node")
        )

    assert lines(panels(over_time)[0]) == [([0, 7, 9, 40], [2.0, 1.5, 1.2, 1.0])]
    ((x, y),) = lines(panels(over_steps)[0])
    np.testing.assert_array_equal(x, [0, 10, 20, NAN, 0])
    np.testing.assert_array_equal(y, [2.0, 1.5, 1.2, NAN, 1.0])
    assert panels(over_steps)[0].get_xlabel() == "step, as the program counts"


def test_a_mean_of_several_devices_beside_other_lines_says_that_it_is_one_of_each(tmp_path: Path) -> None:
    columns = {f'host_filesystem_{what}_bytes{{mountpoint="{point}"}}': [size * 2.0**30] * 3
               for what, size in (("available", 1), ("size", 8)) for point in ("/", "/home")}  # fmt: skip

    assert "available: mean 1 GiB each, max 1 GiB" in texts(
        drawn(tmp_path / "a", "filesystems_per_node", samples(columns))
    )


def test_what_a_job_and_its_machine_both_have_is_not_added_up(tmp_path: Path) -> None:
    one = {"perf_starts_total": [0, 1, 2, 3]}

    with made(tmp_path / "a", samples(one), samples(one, stream="job-7"), zeros=True) as found:
        figure = found["perf_starts_per_node"].draw()

    assert [y for axes in panels(figure) for _, y in lines(axes)] == [[1, 1, 1], [1, 1, 1]]
    assert {"starts machine", "starts job"} <= {text.strip() for text in texts(figure)}


def test_marks_are_thin_lines_with_their_text(tmp_path: Path) -> None:
    path = recording(tmp_path / "a", samples({CPU: [0.5] * 10}))
    from fedmon.common.store.recording import Recording

    with Recording(path) as store:
        store.mark("n1", 1, "host", T0 + 4, "round 2 of $x$")
    with made(path, samples({CPU: [0.5] * 10})) as found:
        figure = found["cpu_load_per_node"].draw()

    (axes,) = panels(figure)
    segments = [np.asarray(path.vertices)[:, 0].tolist() for path in axes.collections[-1].get_paths()]
    assert segments == [[4, 4]]
    assert "round 2 of $x$" in texts(figure)


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_are_named_after_the_figure_and_who_is_in_it(tmp_path: Path) -> None:
    path = recording(tmp_path / "a", *(samples({CPU: [0.1, 0.2]}, node=node) for node in ("a", "b")))

    with Source([path]) as source:
        written = plots.write(source, tmp_path / "plots")

    assert [one.name for one in written] == ["cpu_load_per_node.png", "cpu_load_all_nodes.png"]
    assert all(one.read_bytes().startswith(b"\x89PNG") for one in written)


def test_a_notebook_draws_a_part_of_a_recording(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "a", *(samples({CPU: [0.1, 0.2], "host_load1": [1, 2]}, node=node) for node in ("a", "b"))
    )

    with Source([path]) as source:
        written = report.plot(source, tmp_path / "plots", nodes=["b"], metrics=["host_cpu_*"], kind="svg")
        with pytest.raises(InvalidInputError, match="gif"):
            report.plot(source, tmp_path / "none", kind="gif")

    assert written == [tmp_path / "plots/cpu_load_per_node.svg"]
    assert not (tmp_path / "none").exists()


def test_a_dense_plot_is_small_as_svg_and_as_png_and_the_same_every_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    batches = [samples({CPU: rng.random(4000).tolist()}, node=f"n{number}") for number in range(7)]

    with made(tmp_path / "a", *batches) as found:
        plot = found["cpu_load_per_node"]
        svg, again, png, pdf = plots.as_svg(plot), plots.as_svg(plot), plots.as_png(plot), plots.as_pdf(plot)

    assert svg == again
    assert b">CPU load, per node</text>" in svg
    assert len(svg) < 150_000
    assert len(png) < 150_000
    assert pdf.startswith(b"%PDF")
