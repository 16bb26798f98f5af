"""The measuring parts of a node that lets every metric leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedmon.common.settings.broker import broker_from_url
from fedmon.common.settings.values import NodeSettings
from fedmon.node.measure.pipeline import Pipeline


def pipeline_of(
    file: Path, *, boot: int = 1, send: Callable[[bytes], bool] = lambda _payload: True, **settings: Any
) -> Pipeline:
    """Make a pipeline, not started; ``settings`` are those of NodeSettings."""
    usual: dict[str, Any] = {"id": "a", "broker": broker_from_url("mqtt://127.0.0.1")}
    return Pipeline(
        NodeSettings(**usual | settings),
        boot=boot,
        recording_file=file,
        send=send,
        leaves=lambda _metric: True,
    )
