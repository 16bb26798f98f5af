"""What does not go together with the wire of Fed-BioMed 4.4 is refused at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import SettingsError
from fedmon.common.settings.broker import BrokerHost, BrokerSettings
from fedmon.common.settings.values import NodeSettings, ResearcherSettings

NO_USER = BrokerSettings(hosts=(BrokerHost(host="127.0.0.1", port=1883),))
USER = BrokerSettings(hosts=(BrokerHost(host="127.0.0.1", port=1883),), username="alice")


def node(**fields: Any) -> NodeSettings:
    options: dict[str, Any] = {"id": "a", "broker": NO_USER, "wire": "fedbiomed4"}
    return NodeSettings(**(options | fields))


def researcher(**fields: Any) -> ResearcherSettings:
    options: dict[str, Any] = {"id": "r", "broker": NO_USER, "wire": "fedbiomed4", "folder": Path("r")}
    return ResearcherSettings(**(options | fields))


def test_a_wire_whose_topics_name_nobody_is_never_strict_about_identity() -> None:
    assert [make(broker=USER).identity_is_strict for make in (node, researcher)] == [False, False]
    assert [make(broker=USER, wire="fedmon").identity_is_strict for make in (node, researcher)] == [True, True]
    assert [make(wire="fedmon").identity_is_strict for make in (node, researcher)] == [False, False]


@pytest.mark.parametrize("make", [node, researcher])
def test_being_strict_about_identity_on_it_is_refused(make: Any) -> None:
    with pytest.raises(SettingsError, match="strict_identity"):
        make(strict_identity=True)
    assert make(strict_identity=False).identity_is_strict is False
    assert make(strict_identity=True, wire="fedmon").identity_is_strict is True


def test_samples_on_the_topic_of_their_researchers_are_refused() -> None:
    with pytest.raises(SettingsError, match="monitoring_topic"):
        node(monitoring_topic="flat")
    assert node(monitoring_topic="flat", wire="fedmon").monitoring_topic == "flat"
