"""The file server of Fed-BioMed 4.4: what is uploaded gets a URL, and everybody may fetch it."""

from __future__ import annotations

import json
import threading
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class HistoricRepository:
    """Serves on a free loopback port; a context manager."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.suffix = ""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="historic-repository")

    @property
    def url(self) -> str:
        """Under which everything lies."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    @property
    def upload_url(self) -> str:
        """Where files are uploaded."""
        return f"{self.url}upload/"

    def put(self, name: str, content: bytes) -> str:
        """Store a file as an upload would, and return its URL."""
        path = f"/media/uploads/2023/06/14/{len(self.files)}-{name}"
        self.files[path] = content
        return self.url + path[1:]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = repository.files.get(self.path)
                self._answer(404 if content is None else 200, content or b"not found")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
                upload = BytesParser(policy=default).parsebytes(head + body)
                part = next(iter(upload.iter_parts()))
                assert isinstance(part, EmailMessage)
                content = part.get_payload(decode=True)
                assert isinstance(content, bytes)
                url = repository.put(str(part.get_filename()), content) + repository.suffix
                answer = {"url": url, "file": url, "created_at": "2023-06-14T10:41:07Z"}
                self._answer(201, json.dumps(answer).encode())

            def _answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_arguments: object) -> None:
                """Say nothing."""

        return Handler
