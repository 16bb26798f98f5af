"""Settings: read once from a TOML file and the environment, checked, and passed on as frozen values."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fedmon.common.settings.broker import BrokerOptions, BrokerSettings, Host, broker_from_url, read_secret
from fedmon.common.settings.values import (
    EnergySettings,
    MetricsSettings,
    NodeSettings,
    PerfSettings,
    PolicySettings,
    RecordingSettings,
    RepositorySettings,
    ResearcherSettings,
    RunsSettings,
)

if TYPE_CHECKING:
    from fedmon.common.settings.load import load_broker, load_node, load_researcher

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

# Who is handed settings needs neither what reads a file nor the table of all keys, and a job waits for every import.
_LOADERS = frozenset({"load_broker", "load_node", "load_researcher"})


def __getattr__(name: str) -> object:
    """Import what loads settings on its first use."""
    if name not in _LOADERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("fedmon.common.settings.load"), name)
