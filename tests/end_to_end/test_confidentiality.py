"""What concerns one node or one researcher goes to that one alone, and what was refused stays refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.ids import new_id
from tests.end_to_end.run_sites import SHA256, Site, made, running
from tests.support.brokers import Broker
from tests.support.listener import Listener
from tests.support.node_process import NodeProcess, write_node_folder
from tests.support.raw_researcher import RawResearcher
from tests.support.waiting import wait_until

OWN = "general/nodes/raw/north"
STREAM = "user-raw"


@pytest.fixture(scope="module")
def site(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site") / "north"
    made(folder, lasting_broker, metrics={"interval_s": 0.2}, researchers=["raw", "bob", "eve"])
    with running(NodeProcess(folder), lasting_broker) as made_site:
        yield made_site


def run_of(researcher: RawResearcher, **fields: Any) -> dict[str, Any]:
    return researcher.message("run", job_id=new_id(), sha256=SHA256, tags=["cells"], **fields)


def sent(researcher: RawResearcher, message: dict[str, Any], topic: str | None = None) -> dict[str, Any]:
    """Send a message and return its newest reply."""
    before = len(researcher.replies)
    researcher.send(message, topic=topic)
    found = wait_until(
        lambda: [reply for reply in researcher.replies[before:] if reply.get("id") == message["id"]], what="a reply"
    )
    return found[0]


# --- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("node_id", "topic"), [("south", OWN), ("north", None), ("south", None)])
def test_a_command_for_one_node_is_refused_on_another_topic(site: Site, node_id: str, topic: str | None) -> None:
    captured = run_of(site.researcher, node_id=node_id)

    refused = sent(site.researcher, captured, topic)

    assert (refused["command"], refused["code"]) == ("error", "wrong-address")
    assert f"for node '{node_id}'" in refused["reason"]
    assert site.researcher.ask("job-status", job_id=captured["job_id"])["jobs"] == []


def test_a_command_that_names_its_node_is_served_and_one_that_does_not_is_logged_once(site: Site) -> None:
    with RawResearcher(site.broker, "bob") as bob:
        named = sent(bob, bob.message("ping", node_id="north"), "general/nodes/bob/north")
        warnings = site.node.log().count("researcher bob sends commands that do not name their node")
        unnamed = [sent(bob, bob.message("ping"), "general/nodes/bob/north") for _ in range(3)]

    assert {named["command"], *(each["command"] for each in unnamed)} == {"pong"}
    assert warnings == 0
    assert site.node.log().count("researcher bob sends commands that do not name their node") == 1


def test_a_command_that_does_not_name_its_node_is_refused_where_identity_is_strict(
    lasting_broker: Broker, tmp_path: Path
) -> None:
    folder = write_node_folder(
        tmp_path / "east", url=lasting_broker.url, researchers=["strict"], node={"strict_identity": True}
    )
    with NodeProcess(folder), RawResearcher(lasting_broker, "strict") as researcher:
        wait_until(lambda: researcher.answered("pong"), what="the node")
        unnamed = sent(researcher, researcher.message("ping"), "general/nodes/strict/east")
        named = sent(researcher, researcher.message("ping", node_id="east"), "general/nodes/strict/east")

    assert (unnamed["code"], "does not name its node" in unnamed["reason"]) == ("wrong-address", True)
    assert "strict_identity = false" in unnamed["reason"]
    assert named["command"] == "pong"


def test_a_run_that_expired_does_not_begin_later_under_its_id(site: Site) -> None:
    expired = run_of(site.researcher) | {"expires": "2001-01-01T00:00:00Z"}
    assert sent(site.researcher, expired)["code"] == "expired"
    site.node.kill()
    site.researcher.replies.clear()
    site.node.start()
    wait_until(lambda: site.researcher.answered("pong"), what="the node")

    # By the node's clock it is valid now, as it would be after the clock went back.
    again = sent(site.researcher, expired | {"expires": "2100-01-01T00:00:00Z"})

    assert again["code"] == "expired"
    assert site.researcher.ask("job-status", job_id=expired["job_id"])["jobs"] == []


@pytest.mark.parametrize(
    ("refuse", "allow"),
    [
        (("policy", "deny", "eve"), ("policy", "allow", "eve")),
        (("plan", "reject", SHA256), ("plan", "approve", SHA256)),
    ],
    ids=["researcher", "plan"],
)
def test_a_run_that_was_refused_does_not_begin_when_its_bytes_come_again(
    site: Site, refuse: tuple[str, ...], allow: tuple[str, ...]
) -> None:
    with RawResearcher(site.broker, "eve") as eve:
        site.owner(*refuse)
        captured = run_of(eve)
        assert sent(eve, captured)["code"] == "refused"

        site.owner(*allow)

        assert sent(eve, captured)["code"] == "refused"
        assert sent(eve, run_of(eve))["command"] == "run"


# --- what runs report -----------------------------------------------------------------------------------------------


def test_what_a_run_reports_goes_to_its_researcher_alone_once_a_second(site: Site) -> None:
    # given somebody who hears all that passes the broker, while somebody watches every sample
    with Listener(site.broker) as listener:
        site.researcher.ask("monitor", action="start", interval_s=0.2)
        job_id = site.run(seconds=3, reports=150)
        outcome = site.outcome(job_id)["job"]
        site.researcher.ask("monitor", action="stop")
        wait_until(lambda: any(job_id in json.dumps(each.message) for each in list(listener.heard)
                               if each.message["command"] == "job-outcome"))  # fmt: skip
        heard = list(listener.heard)

    # then its values travel on one topic, in few messages, and all of them before the outcome
    about = [each for each in heard if job_id in json.dumps(each.message)]
    scalars = [each for each in about if each.message["command"] == "run-scalars"]
    end = next(number for number, each in enumerate(about) if each.message["command"] == "job-outcome")
    seconds = outcome["usage"]["wall_s"]
    assert {each.topic for each in about if "loss" in json.dumps(each.message)} == {"general/researcher/raw/all/north"}
    assert 2 <= len(scalars) <= seconds + 2, [len(each.message["scalars"]) for each in scalars]
    assert [one["number"] for each in scalars for one in each.message["scalars"]] == list(range(151))
    assert all(each in about[:end] for each in scalars)
    assert listener.batches(f"job-{job_id}")


def test_what_a_run_reported_is_sent_again_to_its_researcher_alone(site: Site) -> None:
    # given a run that is over
    job_id = site.run(seconds=0.1, reports=3)
    site.outcome(job_id)

    # when its researcher and another one ask for what the node keeps
    kept = site.researcher.ask("monitor", action="status")
    page = site.researcher.ask("monitor", action="resend", stream=STREAM)
    with RawResearcher(site.broker, "bob") as bob:
        others = bob.ask("monitor", action="status")
        refused = [bob.ask("monitor", action="resend", stream=STREAM, **more) for more in ({}, {"boot": page["boot"]})]

    # then the other one learns not even that there is something
    assert STREAM in kept["streams"]
    assert STREAM in {extent["stream"] for extent in kept["extents"]}
    assert any(job_id in series for batch in page["batches"] for series in batch["m"])
    assert STREAM not in json.dumps(others)
    assert {each["code"] for each in refused} == {"failed"}
    assert [each["reason"].count(STREAM) for each in refused] == [1, 1]


def test_a_researcher_that_is_denied_loses_its_lease_at_once(site: Site) -> None:
    with RawResearcher(site.broker, "eve") as eve:
        eve.ask("monitor", action="start", interval_s=0.3, lease_s=60)
        leases = site.owner("status")["live"]["leases"]
        denied = site.owner("policy", "deny", "eve")
        after = site.owner("status")["live"]["leases"]
        site.owner("policy", "allow", "eve")

    # No lease makes the node slower than its owner's 0.2 s.
    assert [(lease["researcher_id"], lease["interval_s"]) for lease in leases] == [("eve", 0.2)]
    assert "eve" not in denied["policy"]["researchers"]
    assert after == []
