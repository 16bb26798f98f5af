"""Whatever fails in between, nothing that a node measured is lost, doubled or out of order: real broker, real nodes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedmon.researcher.federation import Federation
from fedmon.researcher.samples.watch import LiveSample, Watch
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, write_node_folder
from tests.support.proxy import Proxy
from tests.support.record_process import RecordProcess, stored
from tests.support.waiting import elapse, wait_until

Number = tuple[int, int]
TEN_MINUTES = pytest.param(600.0, 1.0, marks=pytest.mark.soak)
"""The length of an outage, and the interval of samples."""


class Heard:
    """What an ordered and a live watch of one researcher got of the stream ``host``."""

    def __init__(self, federation: Federation, *, interval_s: float) -> None:
        self.ordered: list[Number] = []
        self.live: list[Number] = []
        self.watches: list[Watch] = [
            federation.monitor(self._keeper(self.ordered), interval_s=interval_s, ordered=True),
            federation.monitor(self._keeper(self.live), interval_s=interval_s),
        ]

    @staticmethod
    def _keeper(numbers: list[Number]) -> Callable[[LiveSample], None]:
        def keep(sample: LiveSample) -> None:
            if sample.stream == "host":
                numbers.append((sample.boot, sample.seq))

        return keep

    def wait(self, number: int) -> None:
        """Wait until the ordered watch has so many samples."""
        wait_until(lambda: len(self.ordered) > number, what=f"{number} samples in order")

    def check(self) -> None:
        """Assert that nothing is lost, doubled or out of order."""
        assert [watch.lost for watch in self.watches] == [0, 0]
        assert whole(self.ordered)
        assert whole(sorted(self.live))
        assert len(set(self.live)) == len(self.live)


def whole(numbers: Sequence[Number]) -> bool:
    """Tell whether numbers rise by one in each boot, and each later boot begins with 0."""
    pairs = itertools.pairwise(numbers)
    return bool(numbers) and all(
        (after[0] == before[0] and after[1] == before[1] + 1) or (after[0] > before[0] and after[1] == 0)
        for before, after in pairs
    )


def node_folder(folder: Path, url: str, interval_s: float) -> Path:
    metrics = {"interval_s": interval_s, "min_interval_s": 0.2}
    return write_node_folder(folder / "ward", url=url, metrics=metrics)


@pytest.mark.parametrize(("outage_s", "interval_s"), [(2.5, 0.2), TEN_MINUTES])
def test_an_outage_of_the_broker_loses_doubles_and_reorders_nothing_for_any_researcher(
    mosquitto: Broker, tmp_path: Path, outage_s: float, interval_s: float
) -> None:
    # One researcher records on, one is killed before the outage, and one comes after it.
    stores = [tmp_path / f"{name}.fedmon" for name in ("anna", "bert", "carl")]
    with (
        NodeProcess(node_folder(tmp_path, mosquitto.url, interval_s)),
        mosquitto.researcher(tmp_path, "anna") as anna,
        anna.record(stores[0], interval_s=interval_s) as record,
    ):
        heard = Heard(anna, interval_s=interval_s)
        with RecordProcess(mosquitto, tmp_path, "carl") as carl:
            wait_until(lambda: len(heard.ordered) >= 5 and carl.told().get("stored", 0) >= 5, what="first samples")
            mosquitto.stop()
        elapse(outage_s)
        before = len(heard.ordered)
        mosquitto.start()

        missed = int(outage_s / interval_s)
        heard.wait(before + missed)
        at_end = heard.ordered[-1]
        with (
            RecordProcess(mosquitto, tmp_path, "carl") as carl,
            mosquitto.researcher(tmp_path, "bert") as bert,
            bert.record(stores[1], interval_s=interval_s) as late,
        ):
            wait_until(lambda: carl.told().get("positions"), what="the record to go on")
            wait_until(lambda: all(at_end in stored(store) for store in stores), what="whole stores")
            assert carl.stop() == 0
        counts = [record.counts.lost, late.counts.lost, carl.told()["lost"]]

    heard.check()
    assert all(watch.refilled > 0 for watch in heard.watches)
    assert counts == [0, 0, 0]
    assert all(whole(stored(store)) for store in stores)
    assert len({stored(store)[0] for store in stores}) == 1


@pytest.mark.parametrize(("outage_s", "interval_s"), [(1.0, 0.2), TEN_MINUTES])
def test_a_cut_link_of_the_node_or_the_researcher_loses_nothing(
    mosquitto: Broker, tmp_path: Path, outage_s: float, interval_s: float
) -> None:
    with (
        Proxy(mosquitto.port) as far,
        Proxy(mosquitto.port) as near,
        NodeProcess(node_folder(tmp_path, far.url, interval_s)),
        Federation(near.url, researcher_id="anna", folder=tmp_path / "anna") as anna,
    ):
        heard = Heard(anna, interval_s=interval_s)
        with anna.record(tmp_path / "anna.fedmon", interval_s=interval_s) as record:
            wait_until(lambda: len(heard.ordered) >= 5, what="the first samples")
            for link in (far, near):
                before = len(heard.ordered)
                link.cut()
                elapse(outage_s)
                link.heal()
                heard.wait(before + int(outage_s / interval_s))
            at_end = heard.ordered[-1]
            wait_until(lambda: at_end in stored(tmp_path / "anna.fedmon"))
            counts = record.counts

    heard.check()
    assert whole(stored(tmp_path / "anna.fedmon"))
    assert counts.lost == 0


def test_a_node_killed_and_started_again_loses_no_more_than_its_open_batch(mosquitto: Broker, tmp_path: Path) -> None:
    with (
        NodeProcess(node_folder(tmp_path, mosquitto.url, 0.2)) as node,
        mosquitto.researcher(tmp_path, "anna") as anna,
    ):
        heard = Heard(anna, interval_s=0.2)
        with anna.record(tmp_path / "anna.fedmon", interval_s=0.2) as record:
            wait_until(lambda: len(heard.live) >= 8, what="the first samples")
            node.kill()
            old = heard.live[-1]
            node.start()

            wait_until(lambda: len(heard.ordered) > 5 and heard.ordered[-1][0] > old[0], what="the new process")
            at_end = heard.ordered[-1]
            wait_until(lambda: at_end in stored(tmp_path / "anna.fedmon"))
            counts = record.counts

    heard.check()
    numbers = stored(tmp_path / "anna.fedmon")
    assert whole(numbers)
    assert old in numbers
    assert counts.lost == 0


def test_a_store_goes_on_with_all_samples_of_a_node_whose_folder_was_made_anew(
    mosquitto: Broker, tmp_path: Path
) -> None:
    store, repeated = tmp_path / "anna.fedmon", []
    for _ in range(2):
        folder = node_folder(tmp_path, mosquitto.url, 0.2)
        with (
            NodeProcess(folder),
            mosquitto.researcher(tmp_path, "anna") as anna,
            anna.record(store, interval_s=0.2) as record,
        ):
            wait_until(lambda record=record: record.counts.stored >= 5, what="samples")  # type: ignore[misc]  # bound now
        repeated.append(record.counts.repeated)
        shutil.rmtree(folder)

    numbers = stored(store)
    assert repeated == [0, 0]
    assert len({boot for boot, _ in numbers}) == 2
    assert numbers[0][1] == 0
    assert whole(numbers)
