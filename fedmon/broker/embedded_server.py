"""Run the embedded broker in this process; a script that its engine starts, with host and port as arguments.

Imports nothing of ours.
"""

from __future__ import annotations

import logging
import sys
import threading


def main(host: str, port: int) -> None:
    """Listen on one address until the process ends. Raises OSError when the port is in use."""
    from iotcore.iotcore import IotCoreBroker

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # rumqttd reports each routed packet inside an error span, which would fill the log.
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL)
    broker = IotCoreBroker(
        listen=host, port=port, max_connections=2000, max_payload_size=1_048_576, max_inflight_count=200
    )
    broker.start()
    sys.stderr.write(f"embedded broker on {host}:{port} running\n")
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
