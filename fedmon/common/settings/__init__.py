"""Settings: read once from a TOML file and the environment, checked, and passed on as frozen values."""

from __future__ import annotations

from fedmon.common.settings.broker import BrokerHost, BrokerSettings, broker_from_url, read_secret
from fedmon.common.settings.values import (
    EnergySettings,
    MetricsSettings,
    NodeSettings,
    PerfSettings,
    PolicySettings,
    QuotaSettings,
    RecordingSettings,
    ReleaseSettings,
    RepositorySettings,
    ResearcherSettings,
    RunsSettings,
    StoreSettings,
)

__all__ = [
    "BrokerHost",
    "BrokerSettings",
    "EnergySettings",
    "MetricsSettings",
    "NodeSettings",
    "PerfSettings",
    "PolicySettings",
    "QuotaSettings",
    "RecordingSettings",
    "ReleaseSettings",
    "RepositorySettings",
    "ResearcherSettings",
    "RunsSettings",
    "StoreSettings",
    "broker_from_url",
    "read_secret",
]
