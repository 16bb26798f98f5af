from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmon.common.metrics.sample import rate
from fedmon.common.metrics.series import metric_name, series, split_series


def test_labels_are_written_as_in_openmetrics() -> None:
    text = series("host_disk_reads_total", device="sda", kind='a "b" \\ c\nd')

    assert text == 'host_disk_reads_total{device="sda",kind="a \\"b\\" \\\\ c\\nd"}'
    assert metric_name(text) == "host_disk_reads_total"


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True), st.text(), max_size=3))
def test_labels_come_back_as_they_were_given(labels: dict[str, str]) -> None:
    text = "m"
    if labels:
        text = series("m", **labels)

    assert split_series(text) == ("m", labels)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "1a", "a b", "m{", "m{x}", "m{x=1}", 'm{x="1"', 'm{x="1}', 'm{x="1"}}', 'm{x="\\q"}', 'm{x="1",x="2"}'],
)
def test_what_is_not_a_series_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a series"):
        split_series(text)


@pytest.mark.parametrize(
    ("earlier", "later", "elapsed_s", "expected"),
    [
        (10.0, 30.0, 2.0, 10.0),
        (10.0, 10.0, 2.0, 0.0),
        (30.0, 10.0, 2.0, None),
        (None, 10.0, 2.0, None),
        (10.0, None, 2.0, None),
        (10.0, 30.0, 0.0, None),
    ],
)
def test_a_rate_is_known_only_between_two_readings_of_one_run(
    earlier: float | None, later: float | None, elapsed_s: float, expected: float | None
) -> None:
    assert rate(earlier, later, elapsed_s) == expected
