"""The GPU collectors on this machine's own GPU."""

from __future__ import annotations

import os

import pytest

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.nvml import nvml_collectors, open_session

SESSION = open_session()
NOW = Instant(t=0.0, mono=0.0)

# A machine without a GPU is no incomplete installation, so FEDMON_REQUIRE_ALL does not ask for one.
pytestmark = pytest.mark.skipif(
    SESSION.absent is not None, reason=f"no real GPU is tested: {SESSION.absent and SESSION.absent.reason}"
)


def test_a_real_gpu_tells_plausible_values_within_the_patience_of_a_probe() -> None:
    collectors = nvml_collectors(SESSION)
    try:
        for collector in collectors:
            collector.wait_probed(5.0)
        report = {name: reason for collector in collectors for name, reason in collector.probe().items()}
        if SESSION.absent is not None:
            pytest.skip(f"no real GPU is tested: {SESSION.absent.reason}")
        readings = [collector.collect(NOW) for collector in collectors]
    finally:
        for collector in collectors:
            collector.close()
    values = {key: value for reading in readings for key, value in reading.values.items()}

    assert any(reason is None for reason in report.values()), report
    assert [reason for reason in report.values() if reason is not None and ":" not in reason] == []
    hardware = SESSION.hardware()
    assert hardware
    assert os.path.basename(str(hardware[0]["driver_version"]))
    for key, value in values.items():
        if value is not None:
            assert value >= 0, key
            if "_utilization_ratio" in key:
                assert value <= 1, key
            if key.startswith("gpu_temperature_celsius"):
                assert 0 < value < 120
    total, used = (values.get(f'gpu_memory_{word}_bytes{{gpu="0"}}') for word in ("total", "used"))
    if total is not None:
        assert used is not None
        assert used <= total
