"""Processor time of a node's router for one ping: decode, policy, handler, two audit lines, encode.

The peer is the least that any node must do: json.loads, and json.dumps of a reply. ``python -m bench.router``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fedmon.common.clock import seconds_from_now
from fedmon.common.ids import new_id
from fedmon.common.settings.broker import broker_from_url
from fedmon.common.settings.values import NodeSettings, PolicySettings, QuotaSettings
from fedmon.common.wire import codec
from fedmon.common.wire.envelope import Request
from fedmon.common.wire.messages import ListDatasets, Ping, SearchDatasets
from fedmon.node.daemon import LocalNode
from fedmon.node.folder import NodeFolder
from fedmon.node.requests.dialect import Outgoing


def measure(count: int) -> None:
    """Print one line for each command."""
    with tempfile.TemporaryDirectory() as name:
        folder = NodeFolder.create(Path(name) / "node")
        settings = NodeSettings(
            id="bench",
            broker=broker_from_url("mqtt://localhost"),
            policy=PolicySettings(researchers=("alice",)),
            quota=QuotaSettings(requests_per_s=1_000_000),
        )
        sent: list[Outgoing] = []

        def send(outgoing: Outgoing) -> bool:
            sent.append(outgoing)
            return True

        node = LocalNode(
            folder, settings, boot=lambda: 1, post=lambda _job: True, publish=lambda _payload: True, send=send
        )
        envelope = {"researcher_id": "alice", "session": "s", "sequence": 1, "expires": seconds_from_now(3600)}
        requests: dict[str, Request] = {
            "ping": Ping(id=new_id(), **envelope),  # type: ignore[arg-type]  # one envelope for all
            "list": ListDatasets(id=new_id(), **envelope),  # type: ignore[arg-type]
            "search-none": SearchDatasets(id=new_id(), tags=["mri"], **envelope),  # type: ignore[arg-type]
        }
        for case, request in requests.items():
            payload = codec.encode(request)
            sent.clear()
            ours = _microseconds(lambda payload=payload: node.router.receive("general/nodes/alice", payload), count)  # type: ignore[misc]
            assert len(sent) == count, "every request must be answered"
            peer = _microseconds(lambda payload=payload: json.dumps(json.loads(payload)), count)  # type: ignore[misc]
            line = {"bench": "router", "case": case, "ours": round(ours, 2), "peer": round(peer, 2)}
            print(json.dumps(line | {"ratio": round(ours / peer, 2), "unit": "us CPU"}), flush=True)
        node.close()


def _microseconds(run: Callable[[], object], count: int) -> float:
    started = time.process_time()
    for _ in range(count):
        run()
    return (time.process_time() - started) / count * 1e6


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    measure(parser.parse_args().count)


if __name__ == "__main__":
    main()
