"""Run the embedded broker in this process; a script that the engine starts under its keeper.

Arguments: host and port. Imports nothing of ours.
"""

from __future__ import annotations

import logging
import sys
import threading

MAX_PAYLOAD_BYTES = 1_048_576
MAX_CONNECTIONS = 2000
MAX_INFLIGHT = 200


def main(host: str, port: int) -> None:
    """Listen on one address until the process ends. Raises OSError when the port is in use."""
    from iotcore.iotcore import IotCoreBroker

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # rumqttd reports each routed packet inside an error span, which would fill the log.
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL)
    broker = IotCoreBroker(
        listen=host,
        port=port,
        max_connections=MAX_CONNECTIONS,
        max_payload_size=MAX_PAYLOAD_BYTES,
        max_inflight_count=MAX_INFLIGHT,
    )
    broker.start()
    sys.stderr.write(f"embedded broker running on {host}:{port}\n")
    sys.stderr.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
