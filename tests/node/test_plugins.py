"""Collectors that other packages bring."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from fedmon.common.metrics.metric import Unit, rows
from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Reading, Roots, Why
from fedmon.node.collectors.plugins import GROUP, Context, plugin_collectors
from fedmon.node.measure.sampler import Sampler, StreamReader
from tests.support.brokers import Broker
from tests.support.listener import Listener
from tests.support.node_process import NodeProcess, plain_environment, write_node_folder
from tests.support.raw_researcher import RawResearcher
from tests.support.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "docs/examples/collector_plugin"
NOW = Instant(t=1_700_000_000.0, mono=1000.0)


class Offered:
    """A plug-in that needs no package: a name, and what its entry point loads."""

    def __init__(self, name: str, make: Callable[[Context], object], *, value: str = "") -> None:
        self.name, self.value, self._make = name, value or f"{name}:make", make

    def load(self) -> Callable[[Context], object]:
        return self._make


class Counting:
    """A collector that gives what it is told to."""

    name = "counting"
    lane = Lane.FAST

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read

    def collect(self, _now: Instant) -> Reading:
        return Reading(self._read())

    def probe(self) -> dict[str, str | None]:
        return dict.fromkeys(self._read())


def declaring(
    *names: str,
    unit: Unit = Unit.COUNT,
    read: Callable[[], dict[str, Any]] | None = None,
    labels: tuple[str, ...] = (),
) -> Callable[[Context], object]:
    """Make a plug-in that declares counts of these names, and gives 1 of each unless told otherwise."""

    def make(context: Context) -> Collector:
        context.declare(rows("a test", unit, dict.fromkeys(names, "A count."), labels=labels))
        return Counting(read or (lambda: dict.fromkeys(names, 1)))

    return make


def loaded(names: Sequence[str], offers: Iterable[Any], **settings: dict[str, Any]) -> list[Collector]:
    return plugin_collectors(names, roots=Roots(), settings=settings, offers=offers)


def report(collectors: Iterable[Collector]) -> dict[str, str | None]:
    return {name: reason for collector in collectors for name, reason in collector.probe().items()}


def test_a_plug_in_that_the_owner_does_not_name_is_not_loaded() -> None:
    def make(_context: Context) -> object:
        raise AssertionError("must not be called")

    assert loaded([], [Offered("cups", make)]) == []
    assert [each.name for each in loaded(["cups"], [Offered("cups", declaring("host_cups")), Offered("b", make)])] == [
        "plugin-cups"
    ]


def test_a_plug_in_gets_roots_and_settings_and_gives_its_metrics(tmp_path: Path) -> None:
    seen: list[Context] = []

    def make(context: Context) -> list[Collector]:
        seen.append(context)
        context.declare(rows("a test", Unit.BYTES, {"host_cup_bytes": "Size of a cup."}, labels=("cup",)))
        return [Counting(lambda: {'host_cup_bytes{cup="a"}': 3}), Counting(lambda: {'host_cup_bytes{cup="b"}': 4})]

    roots = Roots(proc=tmp_path)
    made = plugin_collectors(["cups"], roots=roots, settings={"cups": {"size": 3}}, offers=[Offered("cups", make)])

    assert (seen[0].roots, seen[0].settings) == (roots, {"size": 3})
    assert [collector.collect(NOW).values for collector in made] == [
        {'host_cup_bytes{cup="a"}': 3},
        {'host_cup_bytes{cup="b"}': 4},
    ]
    assert [collector.name for collector in made] == ["plugin-cups-counting"] * 2


@pytest.mark.parametrize(
    ("taken_or_misnamed", "reason"),
    [
        (declaring("host_load1"), "ConflictError: metric host_load1 is declared twice: fedmon itself has it"),
        (declaring("host_cups"), "ConflictError: metric host_cups is declared twice: the plug-in first has it"),
        (
            declaring("host_tea", "host_tea_total", "host_load5"),
            "ConflictError: metric host_load5 is declared twice",
        ),
        (declaring("host_Tea"), "InvalidInputError: metric 'host_Tea': its name must begin with host_ and end in ''"),
        (
            declaring("host_wait", unit=Unit.SECONDS),
            "InvalidInputError: metric 'host_wait': its name must begin with host_ and end in '_seconds'",
        ),
    ],
)
def test_a_plug_in_with_a_metric_that_is_taken_or_misnamed_is_left_out_and_the_others_stay(
    taken_or_misnamed: Callable[[Context], object], reason: str
) -> None:
    made = loaded(
        ["first", "second", "third"],
        [
            Offered("first", declaring("host_cups")),
            Offered("second", taken_or_misnamed),
            Offered("third", declaring("host_pots")),
        ],
    )

    said = report(made)

    assert (said["host_cups"], said["host_pots"]) == (None, None)
    assert str(said["plugin-second"]).startswith(f"failed: {reason}")
    assert [dict(collector.collect(NOW).values) for collector in made] == [{"host_cups": 1}, {}, {"host_pots": 1}]


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("offers", "reason"),
    [
        ([], "not found: no installed package offers a collector plug-in 'cups'; offered are: fine"),
        (
            [Offered("tea", declaring())],
            "not found: no installed package offers a collector plug-in 'cups'; offered are: fine, tea",
        ),
        (
            [Offered("cups", declaring(), value="a:make"), Offered("cups", declaring(), value="b:make")],
            "failed: several installed packages offer the plug-in 'cups': a:make, b:make",
        ),
        ([EntryPoint("cups", "fedmon_no_such_module:make", GROUP)], "failed: ModuleNotFoundError: No module named"),
        ([EntryPoint("cups", "tests.node.test_plugins:missing", GROUP)], "failed: AttributeError: "),
        ([Offered("cups", raising(KeyError("size")))], "failed: KeyError: 'size'"),
        ([Offered("cups", raising(SystemExit(3)))], "failed: SystemExit: 3"),
        ([Offered("cups", raising(URLError(OSError("no route"))))], "failed: URLError: <urlopen error no route>"),
        ([Offered("cups", lambda _: None)], "failed: AttributeError: 'NoneType' object has no attribute"),
        ([Offered("cups", lambda _: Laneless())], "failed: TypeError: the lane of laneless is 'often'"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_is_named_with_the_reason(offers: list[Any], reason: str) -> None:
    made = loaded(["cups", "fine"], [*offers, Offered("fine", declaring("host_cups"))])

    said = report(made)

    assert said["host_cups"] is None
    assert str(said["plugin-cups"]).startswith(reason)


class Laneless:
    name = "laneless"
    lane = "often"


@pytest.mark.parametrize(
    ("value", "sent", "reason"),
    [
        (True, 1.0, None),
        (None, None, "failed: the plug-in cups gave no reason"),
        (float("nan"), None, "failed: the plug-in cups gave nan"),
        (float("inf"), None, "failed: the plug-in cups gave inf"),
        ("7", None, "failed: the plug-in cups gave '7'"),
    ],
)
def test_only_numbers_leave_a_plug_in(value: object, sent: float | None, reason: str | None) -> None:
    (cups,) = loaded(["cups"], [Offered("cups", declaring("host_cups", read=lambda: {"host_cups": value}))])

    reading = cups.collect(NOW)

    assert reading.values == {"host_cups": sent}
    assert reading.reasons.get("host_cups") == reason


def test_what_was_not_declared_is_dropped_and_named() -> None:
    given: dict[str, Any] = {"host_cups": 1}
    reader = StreamReader(loaded(["cups"], [Offered("cups", declaring("host_cups", read=lambda: given))]))
    reader.probe()
    given |= {"host_load1": 99, 'host_cups{cup="a"}': 2, "no series {": 3}

    reading = reader.read(NOW)

    assert reading.values == {"host_cups": 1}
    said = reader.capabilities()
    assert said["host_cups"] is None
    assert "host_load1" not in said
    assert str(said["plugin-cups"]).startswith("failed: the plug-in cups gave")


def test_a_plug_in_gives_no_endless_number_of_series() -> None:
    given = {f'host_cups{{cup="{number}"}}': 1 for number in range(1001)}
    (cups,) = loaded(["cups"], [Offered("cups", declaring("host_cups", read=lambda: given, labels=("cup",)))])

    assert len(cups.collect(NOW).values) == 1000
    assert str(cups.probe()["plugin-cups"]).startswith("failed: the plug-in cups has more than 1000 series")


def test_a_plug_in_that_fails_while_it_reads_takes_nobody_with_it() -> None:
    trouble: list[BaseException] = []

    def read() -> dict[str, Any]:
        if trouble:
            raise trouble[0]
        return {"host_cups": 1}

    offers = [Offered("cups", declaring("host_cups", read=read)), Offered("pots", declaring("host_pots"))]
    host = loaded(["cups", "pots"], offers)
    sampler = Sampler({"host": host}, interval_s=1.0, on_tick=lambda _: None)
    sampler.sample()
    found = []
    for error in (
        ZeroDivisionError("by zero"),
        SystemExit(1),
        CollectorUnavailableError(Why.NO_PERMISSION, "the cupboard"),
    ):
        trouble[:] = [error]
        found.append(sampler.sample()["host"])

    for sample in found:
        assert sample.values == {"host_cups": None, "host_pots": 1}
    assert [sample.reasons["host_cups"] for sample in found] == [
        "failed: plug-in cups: ZeroDivisionError: by zero",
        "failed: plug-in cups: SystemExit: 1",
        "no permission: the cupboard",
    ]
    assert report(host) == {"plugin-cups": "no permission: the cupboard", "host_pots": None}


def test_a_plug_in_with_another_report_is_read_and_reported_anew_before_its_time() -> None:
    class Learning(Counting):
        lane = Lane.SLOW
        news: BaseException | bool = False

        @property
        def probe_changed(self) -> bool:
            if isinstance(self.news, BaseException):
                raise self.news
            return self.news

        def probe(self) -> dict[str, str | None]:
            self.news = False
            return super().probe()

    given: dict[str, Any] = {}
    cups = Learning(lambda: given)

    def make(context: Context) -> Collector:
        context.declare(rows("a test", Unit.COUNT, {"host_cups": "A count."}))
        return cups

    reader = StreamReader(loaded(["cups"], [Offered("cups", make)]))
    reader.probe()
    reader.read(NOW)

    given["host_cups"], cups.news = 1, SystemExit(1)
    assert reader.read(Instant(t=NOW.t + 1, mono=NOW.mono + 1)).values == {}
    cups.news = True
    assert reader.read(Instant(t=NOW.t + 2, mono=NOW.mono + 2)).values == {"host_cups": 1}
    assert reader.capabilities() == {"host_cups": None}


def test_a_plug_in_is_told_before_its_last_reading_and_closed_after_it() -> None:
    told: list[str] = []

    class Ending(Counting):
        def ending(self) -> None:
            told.append("ending")

        def collect(self, now: Instant) -> Reading:
            told.append("read")
            return super().collect(now)

        def close(self) -> None:
            told.append("closed")

    host = loaded(["cups"], [Offered("cups", lambda _: Ending(dict))])
    sampler = Sampler({"host": host}, interval_s=60.0, on_tick=lambda _: None)
    sampler.start()

    sampler.stop(last_sample=True)

    assert told[-3:] == ["ending", "read", "closed"]


# --- the example, installed ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip installed the example package."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source")
    for path in EXAMPLE.iterdir():
        if path.is_file():
            (source / path.name).write_bytes(path.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", str(target), str(source)],
        check=True, stdin=subprocess.DEVNULL, timeout=50,
    )  # fmt: skip
    return target


def test_the_example_once_installed_measures_in_a_real_node(installed: Path, mosquitto: Broker, tmp_path: Path) -> None:
    metrics, plugins = {"interval_s": 0.2, "plugins": ["sockets", "absent"]}, {"sockets": {"protocols": ["UDP"]}}
    folder = write_node_folder(tmp_path / "ward", url=mosquitto.url, metrics=metrics, plugins=plugins)
    environ = plain_environment(PYTHONPATH=str(installed))
    with (
        Listener(mosquitto) as listener,
        NodeProcess(folder, environ=environ) as node,
        RawResearcher(mosquitto, "anna") as raw,
    ):
        wait_until(raw.answered, what="the node to answer")
        told = raw.ask("monitor", action="start", interval_s=0.2, lease_s=30.0, live=True)

        def measured() -> list[dict[str, Any]]:
            batches = [batch["m"] for batch in listener.batches("host")]
            return [columns for columns in batches if any(columns.get("host_sockets_used", ()))]

        columns = wait_until(measured, what="the sockets")[0]
        assert node.alive()

    assert columns["host_sockets_used"][-1] > 0
    assert 'host_sockets_in_use{protocol="udp"}' in columns
    assert 'host_sockets_in_use{protocol="tcp"}' not in columns
    assert "host_load1" in columns
    assert told["capabilities"]["host_sockets_used"] is None
    assert told["capabilities"]["plugin-absent"].startswith("not found: no installed package offers")
