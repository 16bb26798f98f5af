"""Times that no calendar knows are shown as they came."""

from __future__ import annotations

import datetime

import pytest

from fedmon.common.text import moment

FAR_WEST, FAR_EAST = (datetime.timezone(datetime.timedelta(hours=hours)) for hours in (-12, 12))


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        (datetime.datetime(1, 1, 1, tzinfo=datetime.UTC), "-01-01 00:00:00 UTC"),
        (datetime.datetime(1, 1, 1, tzinfo=FAR_EAST), "0001-01-01T00:00:00+12:00"),
        (datetime.datetime(9999, 12, 31, 12, tzinfo=FAR_WEST), "9999-12-31T12:00:00-12:00"),
    ],
)
def test_the_first_and_the_last_year_are_shown(hostile: datetime.datetime, shown: str) -> None:
    assert moment(hostile).endswith(shown)
