"""The brokers that we start: ready when they say so, never adopted, never left behind."""

from __future__ import annotations

import pathlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from fedmon.broker import ports
from fedmon.broker.configuration import Access
from fedmon.broker.engine import _RUN, BrokerEngine, EmbeddedEngine, MosquittoEngine, choose_engine
from fedmon.broker.ports import BrokerStartError
from fedmon.common.errors import NotFoundError
from tests.broker.party import Party
from tests.support.brokers import crash, takes_messages
from tests.support.full_disk import limited
from tests.support.requirements import require

ENGINES = [MosquittoEngine, EmbeddedEngine]


@pytest.fixture
def installed_mosquitto() -> None:
    require(MosquittoEngine.available(), "mosquitto is not on PATH")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[BrokerEngine]:
    require(request.param.available(), f"the {request.param.name} broker is not installed")
    broker: BrokerEngine = request.param(folder=tmp_path / "broker")
    yield broker
    broker.stop()


def test_a_killed_broker_comes_back_on_the_same_port(engine: BrokerEngine) -> None:
    engine.start()
    port, pid = engine.port, engine.pid

    crash(engine)
    engine.start()

    assert port == engine.port
    assert pid != engine.pid
    assert takes_messages(engine.port)


@pytest.mark.usefixtures("installed_mosquitto")
def test_another_free_port_is_picked_if_the_first_is_taken_meanwhile(tmp_path: pathlib.Path) -> None:
    taken: list[socket.socket] = []

    class Overtaken(MosquittoEngine):
        def _command(self) -> list[str]:
            if not taken:
                taken.append(ports.listening(self.host, self.port))
            return super()._command()

    with Overtaken(folder=tmp_path) as broker, taken[0]:
        assert broker.port != taken[0].getsockname()[1]
        assert takes_messages(broker.port)


@pytest.mark.parametrize("engine_class", ENGINES)
def test_the_broker_dies_with_its_parent(engine_class: type[BrokerEngine], tmp_path: pathlib.Path) -> None:
    require(engine_class.available(), f"the {engine_class.name} broker is not installed")
    program = (
        f"from fedmon.broker.engine import {engine_class.__name__} as Broker\n"
        "import pathlib, sys, threading\n"
        "broker = Broker(folder=pathlib.Path(sys.argv[1]))\n"
        "broker.start()\n"
        "print(broker.pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=pathlib.Path(__file__).parents[2]) as parent:
        assert parent.stdout is not None
        broker = psutil.Process(int(parent.stdout.readline()))
        guards = [child for child in psutil.Process(parent.pid).children() if child != broker]

        parent.kill()
        _, still_there = psutil.wait_procs([broker, *guards], timeout=60.0)

    assert (len(guards), still_there) == (1, [])


@pytest.mark.parametrize(("limit", "allowed"), [(512, 600), (700, 700)])
def test_a_broker_may_open_more_files_and_is_killed_if_it_does_not_end_when_asked(
    limit: int, allowed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    class Stubborn(EmbeddedEngine):
        def _command(self) -> list[str]:
            return ["sh", "-c", 'trap \'\' TERM; ulimit -n; exec "$0" "$@"', *super()._command()]

    require(EmbeddedEngine.available(), "the embedded broker is not installed")
    monkeypatch.setattr("fedmon.broker.engine._STOP_S", 0.1)
    monkeypatch.setattr("fedmon.broker.engine._RUN", _RUN.replace("65536", "600"))
    broker = Stubborn(folder=tmp_path)
    with limited(resource.RLIMIT_NOFILE, limit):
        broker.start()
    pid = broker.pid

    broker.stop()

    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert int(broker.log_file.read_text().split()[0]) == allowed


def test_a_broker_that_cannot_be_run_is_named_and_leaves_no_guard(tmp_path: pathlib.Path) -> None:
    class Unrunnable(MosquittoEngine):
        def _command(self) -> list[str]:
            return ["mosquitto", "x" * 10_000_000]

    before = psutil.Process().children()
    broker = Unrunnable(folder=tmp_path)
    with pytest.raises(BrokerStartError, match=r"the mosquitto broker cannot be run: .*Argument list too long"):
        broker.start()

    assert psutil.Process().children() == before


@pytest.mark.usefixtures("installed_mosquitto")
def test_a_broker_that_cannot_start_says_why(tmp_path: pathlib.Path) -> None:
    broker = MosquittoEngine(folder=tmp_path)
    broker.start()
    broker.stop()
    (tmp_path / "data" / "mosquitto.db").write_bytes(b"not a database")

    with pytest.raises(BrokerStartError, match=r"mosquitto broker on .* ended; its log says: .*Couldn't open database"):
        broker.start()

    assert not broker.alive()


@pytest.mark.usefixtures("installed_mosquitto")
@pytest.mark.skipif(sys.platform != "linux", reason="the delay is one of Linux")
def test_a_round_trip_at_qos_1_does_not_wait_for_delayed_acknowledgements() -> None:
    durations = []
    with (
        MosquittoEngine() as broker,
        Party(broker.port, client_id="a") as asker,
        Party(broker.port, client_id="b") as other,
    ):
        other.subscribe("question")
        other.answer_on("answer")
        asker.subscribe("answer")
        for number in range(41):
            begun = time.perf_counter()
            asker.publish("question", b"%d" % number)
            asker.wait_for("answer", b"%d" % number)
            durations.append(time.perf_counter() - begun)

    # Each round trip would hold a delayed acknowledgement of 0.04 s; a busy machine slows most of them, not all.
    assert min(durations) < 0.02


def test_an_address_of_another_machine_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    broker = MosquittoEngine(host="192.0.2.1", folder=tmp_path, access=Access())

    with pytest.raises(BrokerStartError, match=r"cannot listen on port 0 of 192\.0\.2\.1: .*; use an address of this"):
        broker.start()


def test_a_broker_whose_log_is_removed_as_it_ends_is_said_to_have_ended(tmp_path: pathlib.Path) -> None:
    class Vanishing(MosquittoEngine):
        def _command(self) -> list[str]:
            return ["rm", str(self.log_file)]

    with pytest.raises(BrokerStartError, match=r"mosquitto broker on .* ended; its log says: nothing"):
        Vanishing(folder=tmp_path).start()


def test_an_engine_that_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "iotcore", None)

    with pytest.raises(NotFoundError, match="the embedded broker is not installed: pip install iotcore"):
        choose_engine("embedded")


def test_a_broker_without_a_folder_removes_its_traces() -> None:
    broker = choose_engine()()
    broker.start()
    folder = broker.log_file.parent

    broker.stop()

    assert not folder.exists()
