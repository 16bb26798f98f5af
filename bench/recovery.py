"""How soon a researcher is usable again after a broker came back: seconds from the open port to a whole answer.

``python -m bench.recovery``
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time

from bench.line import print_line
from fedmon.broker.engine import choose_engine
from fedmon.common.errors import NotConnectedError
from fedmon.researcher.federation import Federation
from tests.support.brokers import crash
from tests.support.echo_node import EchoNode

BUDGET_S = 1.0


def recovery(*, killed: bool) -> float:
    """Return the seconds from a started broker to an answer of a node that came back with it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        choose_engine("mosquitto")() as broker,
        Federation(broker.url, folder=folder) as federation,
    ):
        with EchoNode(broker.port, "a", boot=1):
            assert federation.ping().ok
            if killed:
                crash(broker)
            else:
                broker.stop()
        broker.start()
        start = time.perf_counter()
        with EchoNode(broker.port, "a", boot=2):
            while True:
                with contextlib.suppress(NotConnectedError):
                    if federation.ping(timeout_s=2 * BUDGET_S).ok:
                        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    for case, killed in (("broker-restart", False), ("broker-kill-9", True)):
        worst = max(recovery(killed=killed) for _ in range(turns))
        print_line("recovery", case, ours=worst, peer=BUDGET_S, unit="s")


if __name__ == "__main__":
    main()
