"""Times that no time zone knows are shown as they came."""

from __future__ import annotations

import datetime
import time

import pytest

from fedmon.researcher.asking.tables import local_time


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo", "UTC"])
@pytest.mark.parametrize("year", [1, 9999])
def test_the_first_and_the_last_year_are_shown(zone: str, year: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    moment = datetime.datetime(year, 1 if year == 1 else 12, 1 if year == 1 else 31, 12, tzinfo=datetime.UTC)

    shown = local_time(moment)

    monkeypatch.delenv("TZ")
    time.tzset()
    assert int(shown.partition("-")[0]) in (year, year + 1)
