"""Addresses that a node or a researcher must never be bent to connect to, with ``{p}`` for the port of who listens."""

from __future__ import annotations

import socket
from typing import Self

HOSTS = (
    "trap.example.org",
    "rebound.example.net",
    "127.0.0.1.nip.example.org",
    "hospital-files",
)
"""Names that a test has resolve to this machine itself, by a file of hosts."""
METADATA_HOSTS = ("metadata.google.internal", "instance-data.ec2.internal")
"""Names that it has resolve to the address of a cloud's metadata."""

LOOPBACK = (
    "http://127.0.0.1:{p}/x",
    "http://127.0.0.1:{p}/files/../x",
    "http://127.0.0.1:{p}/files/%2e%2e/x",
    "http://127.0.0.2:{p}/x",
    "http://127.1:{p}/x",
    "http://127.0.1:{p}/x",
    "http://2130706433:{p}/x",
    "http://0x7f000001:{p}/x",
    "http://0x7f.0x0.0x0.0x1:{p}/x",
    "http://017700000001:{p}/x",
    "http://0177.0.0.01:{p}/x",
    "http://00000127.0.0.1:{p}/x",
    "http://127.0.0.1.:{p}/x",
    "http://0:{p}/x",
    "http://0.0.0.0:{p}/x",
    "http://[::1]:{p}/x",
    "http://[::]:{p}/x",
    "http://[0:0:0:0:0:0:0:1]:{p}/x",
    "http://[::ffff:127.0.0.1]:{p}/x",
    "http://[::ffff:7f00:1]:{p}/x",
    "http://[::127.0.0.1]:{p}/x",
    "http://[64:ff9b::7f00:1]:{p}/x",
    "http://[2002:7f00:1::]:{p}/x",
    "http://[fe80::1%25lo]:{p}/x",
    "http://localhost:{p}/x",
    "http://LOCALHOST:{p}/x",
    "http://localhost.:{p}/x",
    "http://localhost.localdomain:{p}/x",
    "http://ip6-localhost:{p}/x",
    "https://localhost:{p}/x",
    "https://127.0.0.1:{p}/x",
    "http://trap.example.org:{p}/x",
    "https://trap.example.org:{p}/x",
    "https://trap.example.org.:{p}/x",
    "https://TRAP.example.org:{p}/x",
    "http://trap\u3002example\u3002org:{p}/x",
    "http://127\u30020\u30020\u30021:{p}/x",
    "http://\u2460\u2461\u2466.0.0.1:{p}/x",
    "https://rebound.example.net:{p}/x",
    "https://127.0.0.1.nip.example.org:{p}/x",
    "https://hospital-files:{p}/x",
    "http://files.example.org@127.0.0.1:{p}/x",
    "http://127.0.0.1:{p}@files.example.org/x",
    "http://files.example.org:443#@127.0.0.1:{p}/x",
    "http://127.0.0.1:{p}\\@files.example.org/x",
    "http://127.0.0.1:{p}/x#fragment",
    "http://127.0.0.1:{p}\t/x",
    " http://127.0.0.1:{p}/x",
    "//127.0.0.1:{p}/x",
    "127.0.0.1:{p}/x",
    "HTTP://127.0.0.1:{p}/x",
    "ws://127.0.0.1:{p}/x",
    "ftp://127.0.0.1:{p}/x",
    "gopher://127.0.0.1:{p}/_x",
    "dict://127.0.0.1:{p}/x",
    "ldap://127.0.0.1:{p}/x",
    "jar:http://127.0.0.1:{p}!/x",
    "file:///etc/passwd",
    "file://127.0.0.1:{p}/etc/passwd",
    "data:application/json,{}",
    "http://:{p}/x",
    "http://127.0.0.1:{p}0000000/x",
    "",
)
METADATA = (
    "http://169.254.169.254/latest/meta-data/",
    "http://169.254.169.254:80/latest/",
    "https://169.254.169.254/latest/",
    "http://2852039166/latest/",
    "http://0xa9fea9fe/latest/",
    "http://0251.0376.0251.0376/latest/",
    "http://[::ffff:169.254.169.254]/latest/",
    "http://[::ffff:a9fe:a9fe]/latest/",
    "http://[fd00:ec2::254]/latest/",
    "http://100.100.100.200/latest/",
    "http://192.0.0.192/opc/v1/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "https://metadata.google.internal/computeMetadata/v1/",
    "http://metadata/computeMetadata/v1/",
    "https://instance-data.ec2.internal/latest/",
    "http://user:secret@169.254.169.254/latest/",
)
URLS = LOOPBACK + METADATA

FETCHED = ("http://127.0.0.1:", "http://127.0.0.1.:", "http://localhost", "http://LOCALHOST", "HTTP:", "https:")
BESIDE_FILES = (
    "http://127.0.0.1:{p}/",
    "http://127.0.0.1:{p}/filesystem/x",
    "http://127.0.0.1:{p}/files/../other",
    "http://127.0.0.1:{p}/files/%2e%2e/other",
    "http://127.0.0.1:{p}/files/..%2fother",
    "http://127.0.0.1:{p}/files/%252e%252e/other",
    "http://127.0.0.1:{p}/files/x%00",
    "http://127.0.0.1:{p}/files/x#fragment",
    "http://127.0.0.1:{p}/files/x\r\nHost: other",
    "http://127.0.0.1:{p}/files/ x",
    "http://127.0.0.1:{p}/files/\u2025/x",
    "http://127.0.0.1:{p}\\@plans.example.org/files/x",
    "http://127.0.0.1.example.org:{p}/files/x",
    "http://localhost.localdomain:{p}/files/x",
    "http://localhost:{p}@plans.example.org/files/x",
    "https://plans.example.org@127.0.0.1:{p}/files/x",
    "https://plans.example.org:{p}/files/x",
    "https://plans.example.org.evil.example:{p}/files/x",
    "http:127.0.0.1:{p}/files/x",
    *(url.removesuffix("/x") + "/files/x" for url in LOOPBACK if not url.startswith(FETCHED)),
    *METADATA[:1],
)
"""What a client must not take for an address below ``http://127.0.0.1:{p}/files``, which it may fetch from."""


class Sentinel:
    """Listens at every address of this machine, and counts who connects; a context manager."""

    def __enter__(self) -> Self:
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=is_dual, backlog=1000)
        self._socket.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self._socket.getsockname()[1])

    def connections(self) -> int:
        """Return how many connected since it was last asked."""
        number = 0
        while True:
            try:
                connected, _ = self._socket.accept()
            except BlockingIOError:
                return number
            connected.close()
            number += 1

    def aimed(self) -> list[str]:
        """Return addresses with its own port in them."""
        return [url.replace("{p}", str(self.port)) for url in URLS]
