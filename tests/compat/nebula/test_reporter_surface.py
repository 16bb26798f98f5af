"""The asyncio surface that programs of NEBULA call, and the config that they bring."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedmon.common.errors import FedmonError, SettingsError
from fedmon.compat.nebula import Reporter
from tests.compat.nebula.reporters import (
    HOST,
    Logger,
    Neighbours,
    Scripted,
    Trainer,
    one_by_one,
    participant,
    reported,
    reporter,
    run,
    until,
)
from tests.support.http_controller import HttpController
from tests.support.waiting import wait_until

CPU = "W-CPU/CPU global (%)"


async def test_start_waits_for_the_grace_time_and_returns_the_task() -> None:
    logger = Logger()
    ours = reporter(trainer=Trainer(logger), grace_time_reporter=0.25)
    began = time.monotonic()

    task = await ours.start()

    assert 0.24 <= time.monotonic() - began < 9
    assert isinstance(task, asyncio.Task)
    assert task.get_name() == "Reporter_run_reporter"
    assert logger.logged == []
    await until(lambda: logger.logged)
    await ours.stop()
    assert task.done()


def test_starting_and_stopping_twice_is_once_and_a_start_after_a_stop_goes_on() -> None:
    scripted = Scripted()

    async def steps() -> None:
        ours = reporter(scripted=scripted)
        await ours.stop()
        first, second = await asyncio.gather(ours.start(), ours.start())
        assert first is second is await ours.start()
        await until(lambda: ours.counter >= 1)
        await asyncio.gather(ours.stop(), ours.stop())
        await ours.stop()
        reported = ours.counter
        third = await ours.start()
        assert third is not first
        await until(lambda: ours.counter > reported)
        await ours.stop()
        assert first.done()
        assert third.done()
        assert not first.cancelled()

    before = threading.active_count()
    run(steps())
    wait_until(lambda: threading.active_count() <= before, what="the end of all threads")
    assert scripted.closes == 2


async def test_samples_that_wait_for_a_busy_program_are_reported_before_the_stop() -> None:
    scripted, logger = Scripted(), Logger()
    ours = reporter(trainer=Trainer(logger), scripted=scripted)
    await ours.start()
    await until(lambda: logger.logged)
    wait_until(lambda: scripted.reads >= 5)  # the event loop stands still

    await ours.stop()

    assert len(logger.logged) == scripted.reads - 1  # the first reading begins the shares of CPU time


def test_one_event_loop_after_another_is_served() -> None:
    ours = reporter()

    async def steps() -> None:
        reported = ours.counter
        await ours.start()
        await ours.enqueue_data("loss", 1.0)
        await until(lambda: ours.counter > reported)
        await ours.stop()
        await ours.report_scenario_finished()

    run(steps())
    run(steps())
    run(ours.stop())


async def test_a_stop_within_the_grace_time_ends_the_wait_and_nothing_is_reported() -> None:
    logger = Logger()
    ours = reporter(trainer=Trainer(logger), grace_time_reporter=60)
    starting = asyncio.create_task(ours.start())
    await until(lambda: ours.node_id)
    await asyncio.sleep(0)

    await ours.stop()

    await (await starting)
    assert logger.logged == []


def test_run_reporter_alone_is_enough_and_cancelling_it_ends_every_thread() -> None:
    before, logger = threading.active_count(), Logger()

    async def steps() -> None:
        ours = reporter(trainer=logger)  # a trainer that logs by itself
        task = asyncio.create_task(ours.run_reporter())
        await until(lambda: ours.counter >= 1 and logger.logged)
        await ours.run_reporter()
        assert not (await ours.start()).done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(steps())
    wait_until(lambda: threading.active_count() <= before, what="the end of all threads")


async def test_a_start_that_is_given_up_leaves_nothing_open_and_may_be_repeated() -> None:
    scripted = Scripted()
    ours = reporter(scripted=scripted, grace_time_reporter=60)
    for _ in range(2):
        closed, task = scripted.closes, asyncio.create_task(ours.start())
        await until(lambda: scripted.reads > closed)  # noqa: B023  # within the round
        task.cancel()
        await asyncio.wait({task})
        assert scripted.closes > closed


async def test_a_stop_leaves_no_file_and_no_socket_open() -> None:
    ours = Reporter(participant(), Trainer(Logger()), jitter_s=0.0)
    gc.collect()  # what earlier tests left
    gc.disable()
    try:
        before = psutil.Process().num_fds()
        await reported(ours, lambda: ours.counter >= 1)
        assert psutil.Process().num_fds() <= before
    finally:
        gc.enable()


def test_a_program_that_forgets_to_stop_still_ends() -> None:
    code = (
        "import asyncio, fedmon\n"
        "async def main():\n"
        "    keywords = {'controller': '127.0.0.1:1', 'broker': 'mqtt://127.0.0.1:1', 'node_id': 'n'}\n"
        "    await fedmon.Reporter(report_frequency=0.2, grace_time_reporter=0, **keywords).start()\n"
        "asyncio.run(main())\n"
        "loop = asyncio.new_event_loop()\n"
        "loop.run_until_complete(main())\n"
        "loop.close()\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr


def test_status_comes_before_what_was_enqueued_and_that_before_resources() -> None:
    seen: list[Any] = []

    class Watching:
        def log_data(self, values: dict[str, float]) -> None:
            seen.append((min(values), ours.counts()["statuses_queued"]))

    with HttpController() as controller:
        ours = reporter(trainer=Trainer(Watching()), controller=controller.address)
        run(ours.enqueue_data("A-Round", 1))
        run(reported(ours, lambda: ours.counter >= 2))
    assert [(first, queued) for first, queued in seen[:3]] == [("A-Round", 1), (CPU, 1), (CPU, 2)]


@pytest.mark.parametrize(
    ("generation", "update", "done"),
    [
        ("old", "/nebula/dashboard/first-run/node/update", "/nebula/dashboard/first-run/node/done"),
        ("1.0.0", "/nodes/first-run/update", "/nodes/first-run/done"),
    ],
)
async def test_both_generations_of_the_controller_are_spoken_to(generation: str, update: str, done: str) -> None:
    with HttpController() as controller:
        ours = reporter(controller=controller.address, report_status_data_queue=False, generation=generation)
        assert ours.url == f"http://{controller.address}{update}"
        assert await ours.report_scenario_finished() is True
        await ours.stop()
        assert "fedmon-controller" not in [thread.name for thread in threading.enumerate()]

    # The later generation tells one more status before the end.
    assert [posted.path for posted in controller.posted] == ([done] if generation == "old" else [update, done])


@pytest.mark.parametrize(("status", "is_final"), [(202, False), (404, True)])
async def test_the_end_counts_as_told_only_on_200_and_a_refusal_is_final(status: int, *, is_final: bool) -> None:
    began, within_s = time.monotonic(), 60.0 if is_final else 0.15
    with HttpController(lambda posted: status if posted.path.endswith("done") else 200) as controller:
        ours = reporter(controller=controller.address, finished_within_s=within_s)
        assert await ours.report_scenario_finished() is False
        await ours.stop()

    assert time.monotonic() - began < 30
    assert len(controller.ends()) == 1 or not is_final


def test_the_test_controller_and_no_controller_mean_no_http() -> None:
    for controller in ("nebula-test", "", None):
        ours = reporter(participant(scenario_args={"controller": controller}))
        assert ours.url == ""
        assert run(ours.report_scenario_finished()) is False
        assert ours.counts()["statuses_queued"] == 0


class WithParticipant:
    def __init__(self, participant: dict[str, Any]) -> None:
        self.participant = participant


def test_the_participant_is_a_mapping_or_in_an_object_and_keywords_go_before_it() -> None:
    config = participant(reporter_args={"report_frequency": 7, "grace_time_reporter": 3})
    mapping, held = Reporter(config, streams={}), Reporter(WithParticipant(config), None, streams={})
    mixed = Reporter(participant(), report_frequency=2, controller="10.0.0.9:5000", scenario="third run", streams={})
    alone = Reporter(streams={})

    assert [(each.frequency, each.grace_time, each.node_id) for each in (mapping, held)] == [(7.0, 3.0, "node-3")] * 2
    assert (mixed.frequency, mixed.url) == (2.0, "http://10.0.0.9:5000/nodes/third%20run/update")
    assert (alone.frequency, alone.grace_time, alone.url) == (5.0, 10.0, "")
    assert alone.node_id.startswith("participant-")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"reporter_args": {"report_frequency": "fast"}}, "report_frequency = 'fast'"),
        ({"reporter_args": {"report_frequency": 0}}, "report_frequency = 0"),
        ({"reporter_args": {"grace_time_reporter": -1}}, "grace_time_reporter = -1"),
        ({"reporter_args": {"grace_time_reporter": float("nan")}}, "grace_time_reporter"),
        ({"reporter_args": {"report_status_data_queue": "perhaps"}}, "report_status_data_queue"),
        ({"scenario_args": {"controller": "ftp://a"}}, "not an address"),
        ({"scenario_args": {"controller": "a:99999"}}, "not an address"),
        ({"scenario_args": {"controller": "me:SECRET@a:1"}}, "holds an '@'"),
        (5, "the reporter's config is a int"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_by_name_and_repeats_no_password(config: Any, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Reporter(config)

    assert said in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_generation_or_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingsError, match="generation"):
        Reporter(generation="2.0")  # type: ignore[arg-type]  # what a person may write
    with pytest.raises(FedmonError, match="node_id"):
        Reporter(node_id="a/b")


def test_periods_differ_by_up_to_half_a_second_and_a_seed_fixes_them() -> None:
    def period(seed: int, asked: float = 5.0) -> float:
        return Reporter(report_frequency=asked, seed=seed, streams={}).period_s

    periods = [period(seed) for seed in range(50)]
    assert all(4.5 <= each <= 5.5 for each in periods)
    assert max(periods) - min(periods) > 0.5
    assert period(7) == periods[7]
    assert all(0.45 <= period(seed, 0.5) <= 0.55 for seed in range(50))


async def test_a_status_switch_that_is_moved_while_running_is_obeyed_also_beside_a_file(tmp_path: Path) -> None:
    file = tmp_path / "participant.json"
    with HttpController() as controller:
        config = participant(scenario_args={"controller": controller.address})
        file.write_text(json.dumps({name: part for name, part in config.items() if name != "reporter_args"}))
        held = WithParticipant(config)
        ours = reporter(held, config_file=file, reload_every=1)
        await ours.start()
        await until(controller.statuses)
        config["reporter_args"]["report_status_data_queue"] = False
        config["federation_args"] = {"round": 9}
        held.participant = None  # type: ignore[assignment]  # a program that is rebuilding its config
        count = ours.counter
        await until(lambda: ours.counter >= count + 1)
        held.participant = config
        queued, count = ours.counts()["statuses_queued"], ours.counter
        await until(lambda: ours.counter >= count + 1)
        assert ours.counts()["statuses_queued"] <= queued + 1
        config["reporter_args"]["report_status_data_queue"] = True
        await until(lambda: controller.statuses()[-1].body["federation_args"] == {"round": 9})
        await ours.stop()


class Plain:
    """A manager that is not async."""

    def get_addrs_current_connections(self, *, only_direct: bool) -> list[str]:
        assert only_direct
        return ["a:1"]


@pytest.mark.parametrize(
    ("manager", "count"), [(Neighbours("a:1", "b:2"), [2.0]), (Plain(), [1.0]), (None, []), (object(), [])],
    ids=["async", "plain", "none", "useless"],
)  # fmt: skip
def test_connections_are_counted_with_an_async_or_a_plain_manager(manager: Any, count: list[float]) -> None:
    logger = Logger()

    one_by_one([HOST], logger, cm=manager)

    assert logger.of("X-Network/Connections") == count


def test_the_counters_that_add_ons_read_begin_at_0_and_grow() -> None:
    key = 'host_network_transmit_bytes_total{interface="eth0"}'
    sizes = iter([5e9, 5e9, 5e9 + 700])
    ours = reporter(scripted=Scripted(lambda: HOST | {key: next(sizes, 5e9 + 700)}))
    assert (ours.first_net_metrics, ours.acc_bytes_sent, ours.prev_bytes_sent) == (True, 0, 0)

    run(reported(ours, lambda: ours.counter >= 2))
    assert (ours.first_net_metrics, ours.acc_bytes_sent, ours.prev_bytes_sent) == (False, 700, 5_000_000_700)
    assert (ours.acc_bytes_recv, ours.acc_packets_sent, ours.acc_packets_recv) == (0, 0, 0)
    assert (ours.prev_bytes_recv, ours.prev_packets_sent, ours.prev_packets_recv) == (7_000_000_000, 5_000, 7_000)


@pytest.mark.slow_docs
def test_the_page_for_migrants_runs_as_it_stands() -> None:
    page = (Path(__file__).parents[3] / "docs/howtos/migrating-from-nebula.md").read_text()
    (block,) = (part.partition("```")[0] for part in page.split("```python\n")[1:])

    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert CPU in done.stdout
