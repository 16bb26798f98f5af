"""Who may write and hear what, on the production configuration and a real mosquitto."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from fedmon.broker.users import Role
from fedmon.common.wire import topics
from tests.broker.party import Party, RefusedError
from tests.broker.production import PASSWORD, Production

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


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    with Production(tmp_path_factory.mktemp("production") / "broker", USERS) as running:
        yield running


def connection(production: Production, user: str, client_id: str | None = None, **more: object) -> Party:
    port = production.ports[USERS[user]]
    return Party(
        port,
        client_id=client_id or f"{user}-main",
        credentials=(user, PASSWORD),
        ca_file=production.ca_file,
        **more,  # type: ignore[arg-type]  # whatever Party takes
    )


def observer(production: Production) -> Party:
    return Party(production.observer_port, client_id="observer")


@pytest.mark.parametrize("user", PARTIES)
def test_a_party_writes_what_its_role_allows_and_nothing_else(production: Production, user: str) -> None:
    expected = {topic for topic, (writers, _hearers) in CELLS.items() if user in writers}

    with observer(production) as everything, connection(production, user) as party:
        everything.subscribe("#")
        for topic in CELLS:
            party.publish(topic, b"x")
        everything.publish("end/of/test", b"")
        everything.wait_for("end/of/test")
        heard = everything.topics() - {"end/of/test"}

    assert heard == expected


@pytest.mark.parametrize("filters", [["#"], ["+/#", "general/#"], list(CELLS)], ids=["all", "wildcards", "by name"])
@pytest.mark.parametrize("user", PARTIES)
def test_a_party_hears_what_its_role_allows_and_nothing_else(
    production: Production, user: str, filters: list[str]
) -> None:
    expected = {topic for topic, (_writers, hearers) in CELLS.items() if user in hearers}
    last = {
        Role.NODE: topics.broadcast("end"),
        Role.JOB: topics.broadcast("end"),
        Role.RESEARCHER: topics.reply("alice", "end", B),
    }.get(USERS[user], topics.status("end"))

    with observer(production) as everything, connection(production, user) as party:
        party.subscribe(*filters, last)
        for topic in CELLS:
            everything.publish(topic, b"x")
        everything.publish(last, b"")
        party.wait_for(last)
        heard = party.topics() - {last}

    assert heard == expected


@pytest.mark.parametrize("user", PARTIES)
def test_only_an_admin_looks_at_the_broker_itself(production: Production, user: str) -> None:
    with observer(production) as everything, connection(production, user) as party:
        party.subscribe(
            "$SYS/#", "$SYS/broker/version", topics.broadcast("+"), topics.status("+"), "general/researcher/#"
        )
        for topic in (topics.broadcast("end"), topics.status("end"), topics.reply("alice", "end", B)):
            everything.publish(topic, b"")
        party.wait(
            lambda: bool(
                party.topics() & {topics.broadcast("end"), topics.status("end"), topics.reply("alice", "end", B)}
            )
        )
        heard = {topic for topic in party.topics() if topic.startswith("$SYS")}

    assert bool(heard) == (user == "operator")


@pytest.mark.parametrize("user", USERS)
def test_a_user_logs_in_on_the_listener_of_its_role_alone(production: Production, user: str) -> None:
    let_in = set()
    for role, port in production.ports.items():
        with (
            contextlib.suppress(RefusedError),
            Party(port, client_id="x", credentials=(user, PASSWORD), ca_file=production.ca_file),
        ):
            let_in.add(role)

    assert let_in == {USERS[user]}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    "credentials", [None, ("hospital-a", "wrong password"), ("stranger", PASSWORD), ("", ""), ("hospital-a", "")]
)
def test_nobody_else_is_let_in(production: Production, role: Role, credentials: tuple[str, str] | None) -> None:
    stranger = Party(production.ports[role], client_id=A, credentials=credentials, ca_file=production.ca_file)

    with pytest.raises(RefusedError), stranger:
        pass


def test_a_will_cannot_speak_for_another_node(production: Production) -> None:
    with observer(production) as everything:
        everything.subscribe("general/status/+")
        with connection(production, B, will=(topics.status(A), b"forged")) as liar:
            liar.die()
        with connection(production, B, will=(topics.status(B), b"gone")) as honest:
            honest.die()
        everything.wait_for(topics.status(B), b"gone")

        assert (topics.status(A), b"forged") not in everything.heard


def test_who_knows_a_nodes_client_id_interrupts_it_but_hears_and_says_nothing_for_it(production: Production) -> None:
    with observer(production) as everything, connection(production, A, client_id="known") as victim:
        everything.subscribe("general/#")
        with connection(production, B, client_id="known") as intruder:
            victim.wait(lambda: victim.connections_lost == 1)
            intruder.subscribe(topics.command_filter(A), topics.command_filter(B))
            intruder.publish(topics.status(A), b"forged")
            everything.publish(topics.command("alice", A), b"for a")
            everything.publish(topics.command("alice", B), b"for b")
            intruder.wait_for(topics.command("alice", B))

            assert intruder.topics() == {topics.command("alice", B)}
        assert (topics.status(A), b"forged") not in everything.heard


@pytest.mark.parametrize("client_id", [A, "+", "#", "1/../hospital-a", "alice-main"])
def test_a_job_speaks_for_no_node_whatever_it_calls_itself(production: Production, client_id: str) -> None:
    with observer(production) as everything:
        everything.subscribe("general/#")
        with contextlib.suppress(RefusedError), connection(production, C, client_id=client_id) as liar:
            for topic in CELLS:
                liar.publish(topic, b"forged")
        everything.publish("general/end", b"")
        everything.wait_for("general/end")

        assert {topic for topic, payload in everything.heard if payload == b"forged"} == set()


def test_a_researcher_that_gives_a_nodes_client_id_hears_and_says_nothing_for_it(production: Production) -> None:
    with observer(production) as everything, connection(production, A, clean=False) as victim:
        everything.subscribe("general/#")
        victim.subscribe(topics.command_filter(A))
        with connection(production, "bob", client_id=A, clean=False) as intruder:
            intruder.subscribe(topics.command_filter(A), topics.reply("bob", "end", "+"))
            everything.publish(topics.command("alice", A), b"for a")
            intruder.publish(topics.status(A), b"forged")
            everything.publish(topics.reply("bob", "end", B), b"")
            intruder.wait_for(topics.reply("bob", "end", B))

            assert intruder.topics() == {topics.reply("bob", "end", B)}
        assert (topics.status(A), b"forged") not in everything.heard
    assert "as hospital-a" in production.log()
    assert "u'bob'" in production.log()


def test_an_oversize_packet_costs_its_sender_the_connection_and_reaches_nobody(production: Production) -> None:
    with connection(production, "alice") as reader:
        reader.subscribe(topics.ALL_MONITORING)
        with connection(production, A) as node:
            node.publish_raw(topics.monitoring(A), b"x" * 262_145)
            node.wait(lambda: node.connections_lost > 0)
        with connection(production, A) as node:
            node.publish(topics.monitoring(A), b"x" * 250_000)
            reader.wait_for(topics.monitoring(A))

        assert [len(payload) for _topic, payload in reader.heard] == [250_000]


def test_an_admin_clears_the_presence_of_a_node_that_is_gone(production: Production) -> None:
    with connection(production, A) as node:
        node.publish(topics.status(A), b"online", retain=True)

    with connection(production, "operator") as admin:
        admin.publish(topics.status(A), b"", retain=True)
    with connection(production, "alice") as researcher, observer(production) as everything:
        researcher.subscribe(topics.ALL_STATUS)
        everything.publish(topics.status("end"), b"")
        researcher.wait_for(topics.status("end"))

        assert researcher.topics() == {topics.status("end")}
