"""What a reporter measures where nothing else is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from fedmon.node.collectors import host_collectors
from fedmon.node.collectors.base import Collector
from fedmon.node.publisher import HOST_STREAM
from fedmon.node.reporter.own_tree import OwnTree


def reporter_streams(job: str) -> dict[str, Sequence[Collector]]:
    """Return the machine as a whole, and under ``job`` this process with its children."""
    return {HOST_STREAM: host_collectors(), job: [OwnTree()]}
