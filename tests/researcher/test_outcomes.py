"""What a result says, as text and in a notebook."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from rich.console import Console

from fedmon.common.clock import utc_now
from fedmon.common.ids import NodeId, new_id
from fedmon.common.text import short_ids
from fedmon.common.wire.grants import Grant, GrantReport
from fedmon.common.wire.messages import Dataset, ListReply, PlanStatus, Pong, SearchReply, TrainingPlanStatusReply
from fedmon.researcher.asking.outcome import Circumstances, Nodes, Outcome, Outcomes, OutcomeStatus, exit_code
from fedmon.researcher.roster import Node, NodeState
from tests.support import envelopes

HERE = Circumstances(
    broker="127.0.0.1:1883", researcher_id="r", instance="main", connected=True, settled=True, last_error=""
)


HEAD: dict[str, Any] = {"node_id": "hospital-east", "researcher_id": "r", "id": "i", "session": "s", "sequence": 1}


def pong(node_id: str, agent: str = "1.0") -> Outcome[Pong]:
    reply = envelopes.pong(node_id=node_id, boot=3, agent_version=agent)
    return Outcome(node_id=NodeId(node_id), status=OutcomeStatus.OK, reply=reply, elapsed_s=0.0123)


def refused(node_id: str, reason: str) -> Outcome[Pong]:
    return Outcome(node_id=NodeId(node_id), status=OutcomeStatus.REFUSED, reason=reason, elapsed_s=0.001)


def outcomes(*made: Outcome[Pong], circumstances: Circumstances = HERE) -> Outcomes[Pong]:
    by_id = {outcome.node_id: outcome for outcome in made}
    return Outcomes("ping", by_id, circumstances=circumstances, elapsed_s=0.02)


def test_outcomes_are_a_mapping_by_node_that_tells_who_did_and_who_did_not() -> None:
    found = outcomes(pong("b"), refused("a", "not in this node's policy"))

    assert list(found) == ["a", "b"]
    assert list(found.ok) == ["b"]
    assert {node: outcome.reason for node, outcome in found.failed.items()} == {"a": "not in this node's policy"}
    assert found["b"].ok
    assert found.rows() == [
        {"node": "a", "status": "refused", "reason": "not in this node's policy", "ms": 1.0},
        {"node": "b", "status": "ok", "agent": "1.0", "boot": 3, "reason": "", "ms": 12.3},
    ]


@pytest.mark.parametrize(
    ("said", "code"),
    [("refused outside-grant", 4), ("refused busy", 1), ("busy", 1), ("refused failed", 1), ("refused timed-out", 6)],
)
def test_the_exit_code_is_that_of_a_refusal_only_if_all_refused(said: str, code: int) -> None:
    assert exit_code({OutcomeStatus(status) for status in said.split()}) == code


def test_an_empty_result_says_why() -> None:
    unsettled = Circumstances(
        broker="b.org:8883",
        researcher_id="r",
        instance="x1",
        connected=False,
        settled=False,
        last_error="cannot connect to the broker at b.org:8883: connection refused",
    )

    text = str(outcomes(circumstances=unsettled))

    for part in (
        "no node answered ping",
        "NOT connected",
        "b.org:8883",
        "as r (x1)",
        "may be known yet",
        "connection refused",
    ):
        assert part in text
    assert "may be known yet" in str(outcomes(pong("a"), circumstances=msgspec.structs.replace(HERE, settled=False)))
    assert "none was heard of" in str(Nodes({}, circumstances=HERE))
    assert "none was heard of" in Nodes({}, circumstances=HERE)._repr_html_()


def test_an_answer_of_named_nodes_is_whole_though_others_may_be_there() -> None:
    unsettled = msgspec.structs.replace(HERE, settled=False)

    found = Outcomes("ping", dict(outcomes(pong("a"))), circumstances=unsettled, elapsed_s=0.02, named=True)

    assert str(found).endswith("1 of 1 nodes: ok.")


def test_a_short_form_names_each_node_or_counts_very_many() -> None:
    def known(*nodes: Node, beyond: int = 0) -> Nodes:
        return Nodes({node.node_id: node for node in nodes}, circumstances=HERE, beyond=beyond)

    def one(number: int, state: NodeState, *, id_in_use: bool = False) -> Node:
        name = NodeId(f"n{number:03}")
        return Node(node_id=name, state=state, since=None, last_seen=None, id_in_use=id_in_use)

    few = known(one(1, NodeState.ONLINE), one(2, NodeState.OFFLINE))
    many = known(
        *(one(number, NodeState.OFFLINE if number < 30 else NodeState.ONLINE) for number in range(99)),
        one(99, NodeState.ONLINE, id_in_use=True),
        beyond=7,
    )
    endless = known(one(1, NodeState.ONLINE), beyond=3)

    assert repr(few) == "<Nodes n001: online, n002: offline>"
    assert repr(known()).startswith("<Nodes no node is known")
    assert repr(many) == "<Nodes 69 online, 30 offline, 1 id in use>"
    assert "69 online, 30 offline, 1 id in use; 11 more that are not online. rows(), or --json" in str(many)
    assert "70 of 100 nodes are online; 70 of them not heard yet. 7 more were heard of and" in many.explanation()
    assert "at least 3 more were heard of" in str(endless)
    assert repr(outcomes(pong("b"), refused("a", "no"))) == "<Outcomes of ping: a: refused, b: ok>"


def test_a_notebook_and_a_terminal_show_states_in_colours_and_a_notebook_nothing_of_the_connection() -> None:
    found = outcomes(pong("b"), refused("a", "not in this node's policy"))
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="standard")

    page = found._repr_html_()
    terminal.print(found, Nodes({}, circumstances=HERE))

    assert '<td style="color: green">ok</td>' in page
    assert '<td style="color: red">refused</td>' in page
    assert "<caption>1 of 2 nodes: ok.</caption>" in page
    assert HERE.broker not in page
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]  # the file just made
    assert "\x1b[32m● ok" in shown
    assert "none was heard of" in shown
    assert HERE.broker not in str(found)


def test_tables_fit_a_narrow_terminal_and_what_gives_way_is_in_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    digest, moment, words = "9" * 64, utc_now(), ["breast-cancer", "tabular", "east"]
    table = Dataset(
        dataset_id=f"dataset_{new_id()}", name="breast-cancer", data_type="csv", tags=words, shape=[190, 31],
        description="Wisconsin diagnostic table, second part",
    )  # fmt: skip
    end = datetime(2027, 7, 1, tzinfo=UTC)
    grant = Grant(grant_id="g", sha256=digest, until=end, arguments={"columns": "[str]"}, datasets=(table.dataset_id,))
    grants = [GrantReport(grant=grant)]
    standing = TrainingPlanStatusReply(
        **HEAD, status=PlanStatus.APPROVED, name="mean_plan", decided=moment, note="sums only", grants=grants,
        sha256=digest,
    )  # fmt: skip
    replies: dict[str, Any] = {
        "search": SearchReply(**HEAD, datasets=[table], count=1),
        "training-plan-status": standing,
    }
    empty = SearchReply(**HEAD, datasets=[], count=0)
    nothing = Outcome(node_id=NodeId("a"), status=OutcomeStatus.OK, reply=empty, elapsed_s=0.1)
    away: dict[Any, Any] = {name: refused(name, "offline since 2026-11-30: stopped by its owner") for name in "bc"}

    shown: dict[str, list[str]] = {}
    for command, reply in replies.items():
        told = Outcome(node_id=NodeId("hospital-north"), status=OutcomeStatus.OK, reply=reply, elapsed_s=1.0)
        found: Outcomes[Any] = Outcomes(
            command, {told.node_id: told, nothing.node_id: nothing} | away, circumstances=HERE, elapsed_s=0.1
        )
        shown[command] = [str(found), found._repr_html_(), *found.to_frame().columns]
        for text in (str(found), str(found.__rich__())):
            assert max(map(len, text.splitlines()[:4])) <= 80

    assert shown["search"][0].splitlines()[0].split() == ["node", "status", "name", "tags", "shape", "dataset_id"]
    assert "2 of 4 nodes: ok, 1 dataset." in shown["search"][0]
    assert "b, c: offline since 2026-11-30: stopped by its owner" in shown["search"][0].splitlines()
    assert "description" in shown["search"]
    assert '<td style="white-space: nowrap">hospital-north</td>' in shown["search"][1]
    assert "north: granted any number of runs, until 2027-07-01 00:00 UTC, " in shown["training-plan-status"][0]
    assert (
        f", datasets {short_ids([table.dataset_id])[table.dataset_id]}, columns: " in shown["training-plan-status"][0]
    )


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a\x1b[2Jb\nc\u202e"]
)
def test_nothing_from_a_node_is_markup_or_moves_the_cursor(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    dataset = Dataset(dataset_id="1", name=hostile, data_type=hostile, tags=[hostile], description=hostile)
    reply = ListReply(node_id="a", researcher_id="r", id="i", session="s", sequence=1, datasets=[dataset], count=1)
    outcome = Outcome(node_id=NodeId("a"), status=OutcomeStatus.OK, reply=reply)
    refusal: Any = refused("b", hostile)
    found = Outcomes("list", {NodeId("a"): outcome, NodeId("b"): refusal}, circumstances=HERE, elapsed_s=0.1)

    elements, text = set(re.findall(r"<(\w+)", found._repr_html_())), str(found)

    assert elements <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert not {"\x1b", "\u202e"} & set(text)
    assert text.count("\n") == 5
