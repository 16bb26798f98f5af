"""The kept connection, against brokers that no broker program would be."""

from __future__ import annotations

import socketserver
import threading

from fedmon.common.settings import broker_from_url
from fedmon.common.wire.connection import BrokerConnection
from tests.support.waiting import wait_until

CONNACK = b"\x20\x02\x00\x00"


class GrantAndClose(socketserver.BaseRequestHandler):
    """Accepts a client and closes its connection at once."""

    def handle(self) -> None:
        """Answer CONNECT, and end."""
        self.request.recv(4096)
        self.request.sendall(CONNACK)


def test_connections_that_end_as_they_are_granted_count_as_quick_losses() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), GrantAndClose) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = BrokerConnection(
            broker_from_url(f"mqtt://127.0.0.1:{server.server_address[1]}"),
            client_id="north",
            subscriptions=(),
            on_message=lambda _topic, _payload, _retained: None,
        )

        connection.start()
        try:
            wait_until(lambda: connection.flapping, 10, what="the report of quick losses")
        finally:
            connection.stop()
            server.shutdown()
