"""Settings: read once from a TOML file and the environment, checked, and passed on as frozen values."""

from __future__ import annotations

from fedmon.common.settings.broker import BrokerOptions, BrokerSettings, Host, broker_from_url
from fedmon.common.settings.energy import EnergySettings
from fedmon.common.settings.load import load_broker, load_node, load_researcher
from fedmon.common.settings.perf import PerfSettings
from fedmon.common.settings.recording import RecordingSettings
from fedmon.common.settings.runs import RunsSettings
from fedmon.common.settings.secret import read_secret
from fedmon.common.settings.values import (
    MetricsSettings,
    NodeSettings,
    PolicySettings,
    RepositorySettings,
    ResearcherSettings,
)

__all__ = [
    "BrokerOptions",
    "BrokerSettings",
    "EnergySettings",
    "Host",
    "MetricsSettings",
    "NodeSettings",
    "PerfSettings",
    "PolicySettings",
    "RecordingSettings",
    "RepositorySettings",
    "ResearcherSettings",
    "RunsSettings",
    "broker_from_url",
    "load_broker",
    "load_node",
    "load_researcher",
    "read_secret",
]
