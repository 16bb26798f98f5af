from __future__ import annotations

import pytest

from fedmon.researcher.cli.metrics import NewestValues
from fedmon.researcher.cli.readings import REMEMBERED_S, Latest, WatchState
from tests.researcher.cli.watch_samples import labelled, live

READ = 'host_disk_read_bytes_total{device="sda"}'
OTHER = 'host_disk_read_bytes_total{device="sdb"}'


def test_a_counter_is_shown_as_its_growth_between_its_own_last_two_readings() -> None:
    latest = Latest()
    latest.take(labelled(live(seq=0), {READ: 100.0}))
    latest.take(live(seq=1))  # a tick at which the disk was not read
    latest.take(labelled(live(seq=2), {READ: 300.0}))

    assert latest.growth(READ) == 100.0
    assert latest.growths("host_disk_read_bytes_total") == [({"device": "sda"}, 100.0)]


def test_a_counter_that_went_back_has_no_growth() -> None:
    latest = Latest()
    latest.take(labelled(live(seq=0), {READ: 100.0, OTHER: 0.0}))
    latest.take(labelled(live(seq=1), {READ: 50.0, OTHER: 10.0}))

    assert latest.growth(READ) is None
    assert latest.growth(OTHER) == 10.0


def test_a_value_of_a_slow_lane_stays_until_it_is_too_old() -> None:
    latest = Latest()
    latest.take(live(seq=0, mono=0.0, host_temperature_celsius=40.0))
    latest.take(live(seq=1, mono=60.0))
    after_a_minute = latest.value("host_temperature_celsius")
    latest.take(live(seq=2, mono=REMEMBERED_S + 1))

    assert after_a_minute == 40.0
    assert latest.value("host_temperature_celsius") is None
    assert latest.each("host_temperature_celsius") == []


def test_a_late_sample_changes_nothing_that_is_newer() -> None:
    latest = Latest()
    latest.take(live(seq=5, host_load1=5.0))
    latest.take(live(seq=3, host_load1=3.0, late=True))

    assert latest.value("host_load1") == 5.0
    assert latest.samples == 2


def test_another_boot_begins_anew_and_an_older_one_is_past() -> None:
    latest = Latest()
    latest.take(labelled(live(seq=9, boot=2), {READ: 1000.0}))
    latest.take(labelled(live(seq=0, boot=3, mono=10.0), {READ: 2000.0}))
    latest.take(labelled(live(seq=10, boot=2, late=True), {READ: 1500.0}))

    assert latest.value(READ) == 2000.0
    assert latest.growth(READ) is None


def test_a_stream_that_ended_long_ago_is_forgotten() -> None:
    now = 0.0
    state = WatchState(lambda: now)
    state.take(live(stream="job-1"))
    now = 100.0
    state.take(live(stream="host"))

    state.forget(60.0)

    assert (state.latest("north", "job-1"), state.latest("north", "host") is None) == (None, False)


@pytest.mark.parametrize("is_filtered", [False, True], ids=["all", "without the interval"])
@pytest.mark.parametrize("interval_s", [5.0, 30.0, 300.0, 3600.0])
def test_a_node_is_served_until_it_was_silent_for_three_of_its_intervals(interval_s: float, is_filtered: bool) -> None:
    now = 0.0
    served = NewestValues(WatchState(lambda: now))
    more: dict[str, float | None] = {} if is_filtered else {"agent_interval_seconds": interval_s}
    for seq in (0, 1, 3):  # one sample was lost
        now = seq * interval_s
        served.take(labelled(live(seq=seq, mono=now, host_load1=1.0, host_load5=None), more))

    last = now
    now = last + 2.9 * interval_s
    at_work = [sample.name for family in served.collect() for sample in family.samples]
    now = last + max(15.0, 3 * interval_s) + 1.0
    served.take(live("south", mono=now, host_load1=1.0))
    left = {sample.labels["node"] for family in served.collect() for sample in family.samples}

    assert sorted({"host_load1", *more}) == sorted(at_work)
    assert left == {"south"}
