"""The measuring parts of a node together, with a real job."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.actor import Actor
from fedmon.common.settings.broker import broker_from_url
from fedmon.common.settings.values import EnergySettings, MetricsSettings, NodeSettings, RecordingSettings
from fedmon.node.measure.pipeline import Pipeline
from tests.node.jobs_real import Program
from tests.node.measure.pipelines import pipeline_of
from tests.support.energy_tree import EnergyTree
from tests.support.waiting import wait_until


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine take its time for the last reading of a job's energy."""
    monkeypatch.setattr("fedmon.node.measure.pipeline._LAST_READING_S", 60.0)


@contextmanager
def running(
    folder: Path, metrics: MetricsSettings, send: Callable[[bytes], bool] = lambda _payload: True, **more: Any
) -> Iterator[Pipeline]:
    pipeline = pipeline_of(folder / "recording", metrics=metrics, send=send, **more)
    pipeline.start()
    try:
        yield pipeline
    finally:
        pipeline.stop()


def test_metrics_that_a_reload_enables_are_measured_as_the_settings_say_and_a_node_need_not_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = MetricsSettings(enabled=True, per_core=True, interval_s=60.0)
    reloaded = NodeSettings(id="a", broker=broker_from_url("mqtt://127.0.0.1"), metrics=metrics)
    with (
        running(tmp_path, MetricsSettings(enabled=False), recording=RecordingSettings(enabled=False)) as pipeline,
        Program() as program,
    ):
        pipeline.jobs.add("fit", pids=[program.pid])
        with monkeypatch.context() as patched:  # no thread would take the last sample
            patched.setattr(Actor, "call", lambda *_, **__: pytest.fail("a last sample was waited for"))
            pipeline.jobs.remove("fit")
        pipeline.reload(reloaded, lambda _metric: True)

        wait_until(lambda: pipeline.publisher.last_seq() == 0)
        assert "host_cpu_core_busy_ratio" in pipeline.sampler.capabilities()
        assert "samples_recorded" not in pipeline.counters()
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_is_forgotten_while_it_lives_gets_a_last_sample_with_its_memory(tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = []

    def send(payload: bytes) -> bool:
        sent.append(json.loads(payload))
        return True

    with running(tmp_path, MetricsSettings(interval_s=60.0), send) as pipeline:
        wait_until(lambda: pipeline.publisher.last_seq() == 0, what="the first tick")
        with Program() as program:
            pipeline.jobs.add("fit", pids=[program.pid])
            pipeline.sampler.sample_now()
            wait_until(lambda: pipeline.publisher.last_seq("job-fit") == 0)
            pipeline.jobs.remove("fit")
        pipeline.publisher.set_pace(interval_s=1.0, live=False)
        pipeline.user_values.add_scalar("loss", 0.5)

    batches = [each["m"] for each in sent if each["stream"] == "job-fit"]
    assert [count for batch in batches for count in batch["job_processes"]] == [1, 1]
    assert None not in [size for batch in batches for size in batch["job_memory_pss_bytes"]]
    assert [each["m"] for each in sent if each["stream"] == "user"] == [{'user_value{name="loss"}': [0.5]}]


def test_the_energy_of_a_job_is_told_only_if_it_was_read_from_its_begin_to_its_end(
    tmp_path: Path, patient: None
) -> None:
    tree = EnergyTree(tmp_path)
    tree.zone("intel-rapl:0", name="package-0", energy_uj=1_000_000)
    metrics = MetricsSettings(interval_s=60.0, sys_root=tree.sys)
    reloaded = NodeSettings(
        id="a", broker=broker_from_url("mqtt://127.0.0.1"), metrics=metrics, energy=EnergySettings(region="FR")
    )

    with running(tmp_path, metrics) as pipeline, Program() as program:

        def read_again() -> None:
            before = pipeline.publisher.last_seq("job-fit")
            pipeline.sampler.sample_now()
            wait_until(lambda: pipeline.publisher.last_seq("job-fit") != before)

        def energy(wall_s: float) -> float | None:
            return pipeline.job_energy("fit", wall_s, sum(program.used_s()), ended=time.time())

        wait_until(lambda: pipeline.publisher.last_seq() == 0, what="the first tick")
        pipeline.jobs.add("fit", pids=[program.pid])
        read_again()
        part = energy(3600.0)
        read_again()
        program.tell("burn 0.1")
        tree.shows("intel-rapl:0", 6_000_000)
        whole = energy(0.1)
        read_again()
        pipeline.reload(reloaded, lambda _metric: True)
        read_again()
        since_reload = energy(3600.0)

    assert (part, since_reload) == (None, None)
    assert whole is not None
    assert 0 < whole <= 5


@pytest.mark.parametrize("is_missed", [False, True], ids=["read first at its end", "read in between"])
def test_the_energy_of_a_job_shorter_than_a_tick_has_all_of_its_cpu_time(
    tmp_path: Path, patient: None, is_missed: bool
) -> None:
    tree = EnergyTree(tmp_path)
    tree.zone("intel-rapl:0", name="package-0", energy_uj=1_000_000)

    with running(tmp_path, MetricsSettings(interval_s=60.0, sys_root=tree.sys)) as pipeline:
        wait_until(lambda: pipeline.publisher.last_seq() == 0, what="the first tick")
        with Program() as program:
            pipeline.jobs.add("fit", pids=[program.pid])
            pipeline.sampler.sample_now()
            wait_until(lambda: pipeline.publisher.last_seq("job-fit") == 0)
            program.tell("burn 0.5")
            cpu_s = sum(program.used_s())
            tree.shows("intel-rapl:0", 6_000_000)
            program.end()
        ended = time.time()
        if is_missed:
            pipeline.sampler.sample_now()
            wait_until(lambda: pipeline.publisher.last_seq("job-fit") == 1)
        joules = pipeline.job_energy("fit", 0.5, cpu_s, ended=ended)

    assert (joules is None) == is_missed
    assert is_missed or 0 < (joules or 0) <= 5
