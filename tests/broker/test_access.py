"""Who may write and hear what, on the production configuration and a real mosquitto, and on the clusters' files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.broker.users import Role
from fedmon.common.wire import topics
from fedmon.doctor.cli import CheckStatus, talk
from fedmon.researcher.federation import Federation
from tests.broker.party import Party, RefusedError
from tests.broker.production import Production, require_names_of_jobs
from tests.support.clusters import CLUSTERS, Cluster
from tests.support.passwords import PASSWORD
from tests.support.requirements import require
from tests.support.waiting import wait_until

USERS = {
    "hospital-a": Role.NODE,
    "hospital-b": Role.NODE,
    "alice": Role.RESEARCHER,
    "bob": Role.RESEARCHER,
    "grafana": Role.MONITOR,
    "operator": Role.ADMIN,
    "cluster-1": Role.JOB,
}
C = "cluster-1"
PARTIES = ("hospital-a", "alice", "grafana", "operator", C)
A, B = "hospital-a", "hospital-b"
J, K = "job-cluster-1-main", "job-4711-n1"
"""The job that this party is by its client id, and another one."""

# Which of the parties may (write, hear) a topic; every cell that is not named is forbidden.
CELLS: dict[str, tuple[set[str], set[str]]] = {
    topics.broadcast("alice"): ({"alice"}, {A, C}),
    topics.broadcast("bob"): (set(), {A, C}),
    topics.broadcast(A): (set(), {A, C}),
    topics.broadcast("grafana"): (set(), {A, C}),
    topics.broadcast("cluster-1"): (set(), {A, C}),
    topics.command("alice", A): ({"alice"}, {A}),
    topics.command("alice", B): ({"alice"}, set()),
    topics.command("bob", A): (set(), {A}),
    topics.command("bob", B): (set(), set()),
    topics.command(A, B): (set(), set()),
    topics.command(B, A): (set(), {A}),
    topics.command("alice", J): ({"alice"}, {C}),
    topics.command("alice", K): ({"alice"}, set()),
    topics.command(C, A): (set(), {A}),
    "general/nodes": (set(), set()),
    "general/nodes/alice/hospital-a/more": (set(), set()),
    topics.reply("alice", "main", A): ({A}, {"alice"}),
    topics.reply("alice", "all", A): ({A}, {"alice"}),
    topics.reply("alice", "main", B): (set(), {"alice"}),
    topics.reply("alice", "main", "alice"): ({"alice"}, {"alice"}),
    topics.reply("bob", "main", A): ({A}, set()),
    topics.reply("bob", "main", B): (set(), set()),
    topics.reply("bob", "main", "alice"): (set(), set()),
    topics.reply("bob", "main", "bob"): (set(), set()),
    topics.reply(A, "main", B): (set(), set()),
    topics.reply("alice", "main", J): ({C}, {"alice"}),
    topics.reply("alice", "main", K): (set(), {"alice"}),
    topics.reply("alice", "main", C): (set(), {"alice"}),
    topics.log(J): (set(), {"alice", "operator"}),
    topics.monitoring(J): ({C}, {"alice", "grafana", "operator"}),
    topics.monitoring(K): (set(), {"alice", "grafana", "operator"}),
    topics.monitoring(C): (set(), {"alice", "grafana", "operator"}),
    topics.status(J): ({C, "operator"}, {C, "alice", "grafana", "operator"}),
    topics.status(K): ({"operator"}, {"alice", "grafana", "operator"}),
    "general/researcher": (set(), set()),
    "general/researcher/alice": (set(), {"alice"}),
    topics.log(A): ({A}, {"alice", "operator"}),
    topics.log(B): (set(), {"alice", "operator"}),
    "general/logger": (set(), {"alice", "operator"}),
    topics.monitoring(A): ({A}, {"alice", "grafana", "operator"}),
    topics.monitoring(B): (set(), {"alice", "grafana", "operator"}),
    "general/monitoring": (set(), {"alice", "grafana", "operator"}),
    topics.status(A): ({A, "operator"}, {A, "alice", "grafana", "operator"}),
    topics.status(B): ({"operator"}, {"alice", "grafana", "operator"}),
    topics.status("alice"): ({"operator"}, {"alice", "grafana", "operator"}),
    "general/hospital-a": (set(), set()),
    "general": (set(), set()),
    "other/hospital-a": (set(), set()),
}


# What a cluster grants beyond that: RabbitMQ holds a job's user to names of jobs, but not to the name of one job.
MORE: dict[tuple[str, str], tuple[set[str], set[str]]] = {
    ("rabbitmq", C): (
        {topics.reply("alice", "main", K), topics.monitoring(K), topics.status(K)},
        {topics.command("alice", K), topics.status(K)},
    ),
}
# Filters that are as wide as the role: what fedmon and dashboards ask for.
FILTERS = {
    A: [topics.BROADCAST_FILTER, topics.command_filter(A), topics.status(A)],
    "alice": ["general/researcher/alice/#", topics.ALL_STATUS, topics.ALL_MONITORING, topics.ALL_LOGS],
    "grafana": [topics.ALL_STATUS, topics.ALL_MONITORING],
    "operator": [topics.ALL_STATUS, topics.ALL_MONITORING, topics.ALL_LOGS],
    C: [topics.BROADCAST_FILTER, topics.command_filter(J), topics.status(J)],
}
BITS = "0123456789abcdef" * 2
"""What the client ids of fedmon end in."""

Running = Production | Cluster


def kinds(name: str, *values: object) -> Any:
    """Return parameters that begin with a kind of broker; RabbitMQ starts too slowly for every run of the suite."""
    return pytest.param(name, *values, marks=[pytest.mark.soak, pytest.mark.timeout(600)] if name == "rabbitmq" else [])


BROKERS = ("mosquitto", *CLUSTERS)
on_mosquitto = pytest.mark.parametrize("broker", ["mosquitto"], indirect=True)
on_each = pytest.mark.parametrize("broker", [kinds(name) for name in BROKERS], indirect=True)
for_each_party = pytest.mark.parametrize(
    ("broker", "user"),
    [kinds(name, user) for name in BROKERS for user in PARTIES if (name, user) != ("nats", C)],
    indirect=["broker"],
)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Running]]:
    """Each kind of broker, started by the first test that asks for it."""
    with contextlib.ExitStack() as running:
        started: dict[str, Running] = {}

        def of(name: str) -> Running:
            if name not in started:
                one = made(name, tmp_path_factory.mktemp(name) / "broker")
                running.enter_context(one)
                started[name] = one
            return started[name]

        yield of


@pytest.fixture
def broker(request: pytest.FixtureRequest, brokers: Callable[[str], Running]) -> Running:
    if (request.param, request.node.callspec.params.get("user")) == ("mosquitto", C):
        require_names_of_jobs()
    return brokers(request.param)


def made(name: str, folder: Path) -> Running:
    if name == "mosquitto":
        return Production(folder, USERS)
    kind = CLUSTERS[name]
    require(kind.available(), f"{name} is not installed: apt install rabbitmq-server, pip install .[bench]")
    users = {user: role for user, role in USERS.items() if (name, role) != ("nats", Role.JOB)}
    # One host of RabbitMQ does for access what three do; NATS has nothing to keep sessions in with fewer than three.
    return kind(folder, users, members=1 if name == "rabbitmq" else 3)


def connection(broker: Running, user: str, client_id: str | None = None, **more: Any) -> Party:
    return broker.party(user, client_id or (f"{user}-main" if user == C else f"{user}-main-{BITS}"), **more)


def publish_each(broker: Running, user: str, payload: bytes, client_id: str | None = None) -> None:
    """Publish on every topic of the table; RabbitMQ cuts a party off for each that it refuses."""
    waiting = list(CELLS)
    while waiting:
        with connection(broker, user, client_id) as party:
            while waiting and party.publish(waiting.pop(), payload):
                pass


def granted(broker: Running, user: str, filters: list[str]) -> list[str]:
    """Return the filters that a broker grants; mosquitto grants all, and decides when it delivers."""
    if isinstance(broker, Production):
        return filters
    left, waiting = [], list(filters)
    while waiting:
        with connection(broker, user) as party:
            while waiting and not party.connections_lost:
                name = waiting.pop()
                left += [name] if party.subscribe(name) else []
    return left


@for_each_party
def test_a_party_writes_what_its_role_allows_and_nothing_else(broker: Running, user: str) -> None:
    expected = {topic for topic, (writers, _hearers) in CELLS.items() if user in writers}
    more, _ = MORE.get((broker.name, user), (set(), set()))

    with broker.observer() as everything:
        everything.subscribe("#")
        publish_each(broker, user, b"x")
        everything.publish("end/of/test", b"")
        everything.wait_for("end/of/test")
        heard = {topic for topic, payload in everything.heard if payload == b"x"}

    assert heard == expected | more


@pytest.mark.parametrize(
    "filters",
    [["#"], ["+/#", "general/#"], list(CELLS), []],
    ids=["all", "wildcards", "by name", "of the role"],
)
@for_each_party
def test_a_party_hears_what_its_role_allows_and_nothing_else(broker: Running, user: str, filters: list[str]) -> None:
    expected = {topic for topic, (_writers, hearers) in CELLS.items() if user in hearers}
    _, more = MORE.get((broker.name, user), (set(), set()))
    if isinstance(broker, Cluster) and "#" in "".join(filters):
        expected = set()  # it refuses a filter that is wider than the role
    elif filters:
        expected |= more
    last = {
        Role.NODE: topics.broadcast("end"),
        Role.JOB: topics.broadcast("end"),
        Role.RESEARCHER: topics.reply("alice", "end", B),
    }.get(USERS[user], topics.status("end"))

    asked = granted(broker, user, filters or FILTERS[user])
    with broker.observer() as everything, connection(broker, user) as party:
        assert party.subscribe(*asked, last)
        for topic in CELLS:
            everything.publish(topic, b"x")
        everything.publish(last, b"")
        # A cluster keeps the order within a filter, not between two.
        party.wait(lambda: party.topics() >= expected | {last})
        heard = party.topics() - {last}

    assert heard == expected


@on_mosquitto
@pytest.mark.parametrize("user", PARTIES)
def test_only_an_admin_looks_at_the_broker_itself(broker: Production, user: str) -> None:
    sent = {topics.broadcast("end"), topics.status("end"), topics.reply("alice", "end", B)}
    with broker.observer() as everything, connection(broker, user) as party:
        party.subscribe(
            "$SYS/#", "$SYS/broker/version", topics.broadcast("+"), topics.status("+"), "general/researcher/#"
        )
        for topic in sent:
            everything.publish(topic, b"")
        party.wait(lambda: not sent.isdisjoint(party.topics()))
        heard = {topic for topic in party.topics() if topic.startswith("$SYS")}

    assert bool(heard) == (user == "operator")


@on_mosquitto
@pytest.mark.parametrize("user", USERS)
def test_a_user_logs_in_on_the_listener_of_its_role_alone(broker: Production, user: str) -> None:
    let_in = [
        role
        for role, port in broker.ports.items()
        if Party(port, client_id="x", credentials=(user, PASSWORD), ca_file=broker.ca_file).is_let_in()
    ]

    assert let_in == [USERS[user]]


@pytest.mark.parametrize(
    "credentials", [None, ("hospital-a", "wrong password"), ("stranger", PASSWORD), ("", ""), ("hospital-a", "")]
)
@pytest.mark.parametrize(
    ("broker", "role"),
    [*(kinds("mosquitto", role) for role in Role), *(kinds(name, Role.NODE) for name in CLUSTERS)],
    indirect=["broker"],
)
def test_nobody_else_is_let_in(broker: Running, role: Role, credentials: tuple[str, str] | None) -> None:
    port = broker.ports[role] if isinstance(broker, Production) else broker.ports[0]

    assert not Party(port, client_id=A, credentials=credentials, ca_file=broker.ca_file).is_let_in()


@on_each
def test_a_will_cannot_speak_for_another_node(broker: Running) -> None:
    with broker.observer() as everything:
        everything.subscribe("general/status/+")
        with (
            contextlib.suppress(RefusedError),
            connection(broker, B, will=(topics.status(A), b"forged")) as liar,
        ):
            liar.die()
        with connection(broker, B, will=(topics.status(B), b"gone")) as honest:
            honest.die()
        everything.wait_for(topics.status(B), b"gone")

        assert (topics.status(A), b"forged") not in everything.heard


@on_mosquitto
@pytest.mark.parametrize(("user", "own"), [(B, topics.command("alice", B)), ("bob", topics.reply("bob", "end", B))])
def test_who_knows_a_nodes_client_id_interrupts_it_but_hears_and_says_nothing_for_it(
    broker: Production, user: str, own: str
) -> None:
    with broker.observer() as everything, connection(broker, A, client_id="known", clean=False) as victim:
        everything.subscribe("general/#")
        victim.subscribe(topics.command_filter(A))
        with connection(broker, user, client_id="known", clean=False) as intruder:
            victim.wait(lambda: victim.connections_lost == 1)
            intruder.subscribe(topics.command_filter(A), own)
            intruder.publish(topics.status(A), b"forged")
            everything.publish(topics.command("alice", A), b"for a")
            everything.publish(own, b"")
            intruder.wait_for(own)

            assert intruder.topics() == {own}
        assert (topics.status(A), b"forged") not in everything.heard
    assert f"u'{user}'" in broker.log()


@pytest.mark.parametrize("client_id", [A, "+", "#", "1/../hospital-a", "alice-main", "x|.*", "x)|(.*"])
@pytest.mark.parametrize("broker", [kinds("mosquitto"), kinds("rabbitmq")], indirect=True)
def test_a_job_speaks_for_no_node_whatever_it_calls_itself(broker: Running, client_id: str) -> None:
    with broker.observer() as everything:
        everything.subscribe("general/#")
        with contextlib.suppress(RefusedError):
            publish_each(broker, C, b"forged", client_id)
        everything.publish("general/end", b"")
        everything.wait_for("general/end")

        forged = {topic for topic, payload in everything.heard if payload == b"forged"}
        assert {topic for topic in forged if "/job-" not in topic} == set()
        assert not forged or broker.name == "rabbitmq"


@pytest.mark.parametrize("broker", [kinds(name) for name in CLUSTERS], indirect=True)
@pytest.mark.parametrize("user", [B, "bob"])
def test_who_gives_a_nodes_client_id_to_a_cluster_hears_and_says_nothing_for_it(broker: Cluster, user: str) -> None:
    known = f"{A}-{BITS}"
    with broker.observer() as everything:
        everything.subscribe("general/#")
        with connection(broker, A, known, clean=False) as victim:
            assert victim.subscribe(topics.command_filter(A))
        with contextlib.suppress(RefusedError), connection(broker, user, known, clean=False) as intruder:
            intruder.subscribe(topics.command_filter(A))
            everything.publish(topics.command("alice", A), b"for a")
            intruder.publish(topics.status(A), b"forged")
            everything.publish(topics.broadcast("end"), b"")
            everything.wait_for(topics.broadcast("end"))

            assert intruder.topics() == set()
        with connection(broker, A, known, clean=False) as victim:
            victim.subscribe(topics.command_filter(A), topics.BROADCAST_FILTER)
            everything.publish(topics.command("alice", A), b"again")
            victim.wait_for(topics.command("alice", A), b"again")

        assert (topics.status(A), b"forged") not in everything.heard


@on_each
def test_an_oversize_packet_costs_its_sender_the_connection_and_reaches_nobody(broker: Running) -> None:
    with connection(broker, "alice") as reader:
        reader.subscribe(topics.ALL_MONITORING)
        with connection(broker, A) as node:
            node.publish_raw(topics.monitoring(A), b"x" * 262_145)
            node.wait(lambda: node.connections_lost > 0)
        with connection(broker, A) as node:
            node.publish(topics.monitoring(A), b"x" * 250_000)
            reader.wait_for(topics.monitoring(A))

        assert [len(payload) for _topic, payload in reader.heard] == [250_000]


@on_each
def test_an_admin_clears_the_presence_of_a_node_that_is_gone(broker: Running) -> None:
    with connection(broker, A) as node:
        node.publish(topics.status(A), b"online", retain=True)

    with connection(broker, "operator") as admin:
        admin.publish(topics.status(A), b"", retain=True)

    def is_gone() -> bool:  # NATS clears what it retained a moment after it has confirmed that
        with connection(broker, "alice") as researcher, broker.observer() as everything:
            researcher.subscribe(topics.ALL_STATUS, topics.status(A))
            everything.publish(topics.status("end"), b"")
            researcher.wait_for(topics.status("end"))
            return researcher.topics() == {topics.status("end")}

    wait_until(is_gone, what="the cleared presence")


@on_each
def test_the_doctor_finds_nothing_wrong_with_the_broker_of_a_researcher(broker: Running, tmp_path: Path) -> None:
    url = broker.url("alice") if isinstance(broker, Production) else broker.url(0)
    settings = Federation(url, folder=tmp_path, **broker.broker_settings("alice")).settings  # type: ignore[arg-type]  # names of files

    checks = list(talk(settings.broker, client_id="alice", topic=topics.reply("alice", "x", "alice"), timeout_s=30.0))

    assert [(check.name, check.found) for check in checks if check.verdict is not CheckStatus.OK] == []


@pytest.mark.parametrize("user", ["grafana", "operator"])
@pytest.mark.parametrize("broker", ["nats"], indirect=True)
def test_fedmon_runs_as_a_monitor_or_admin(broker: Cluster, user: str, tmp_path: Path) -> None:
    with Federation(broker.url(0), folder=tmp_path, **broker.broker_settings(user)) as federation:  # type: ignore[arg-type]  # names of files
        assert federation.status().connected
