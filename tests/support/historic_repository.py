"""The file server of Fed-BioMed 4.4: what is uploaded gets a URL, and everybody may fetch it."""

from __future__ import annotations

import json
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default

from tests.support.http_server import Answers, LoopbackServer


class HistoricRepository(LoopbackServer):
    """Keeps ``files`` by their path; a context manager. Each URL that it tells ends with ``suffix``."""

    def __init__(self) -> None:
        super().__init__(_Files)
        self.files: dict[str, bytes] = {}
        self.suffix = ""

    @property
    def upload_url(self) -> str:
        """Where files are uploaded."""
        return f"{self.url}upload/"

    def put(self, name: str, content: bytes) -> str:
        """Store a file as an upload would, and return its URL."""
        path = f"/media/uploads/2023/06/14/{len(self.files)}-{name}"
        self.files[path] = content
        return self.url + path[1:]


class _Files(Answers):
    def do_GET(self) -> None:  # noqa: N802  # as http.server has it
        content = self.server.files.get(self.path)
        self.reply(404 if content is None else 200, content or b"not found")

    def do_POST(self) -> None:  # noqa: N802  # as http.server has it
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        upload = BytesParser(policy=default).parsebytes(head + self.body())
        part = next(iter(upload.iter_parts()))
        assert isinstance(part, EmailMessage)
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        url = self.server.put(str(part.get_filename()), content) + self.server.suffix
        answer = {"url": url, "file": url, "created_at": "2023-06-14T10:41:07Z"}
        self.reply(201, json.dumps(answer).encode())
