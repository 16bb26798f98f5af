"""Take the one file out of a ``multipart/form-data`` body, as it streams in."""

from __future__ import annotations

from collections.abc import Callable
from email.message import Message

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError

from fedmon.broker.errors import BadUploadError

FIELD = "file"


class FileField:
    """Finds the field ``file`` and hands its bytes to ``take``; other fields, and every file name, are ignored.

    Raises BadUploadError for a content type or body that is not multipart, and for a second file.
    """

    def __init__(self, content_type: str, take: Callable[[bytes], None]) -> None:
        header = Message()
        header["content-type"] = content_type
        boundary = header.get_param("boundary")
        if (
            header.get_content_type() != "multipart/form-data"
            or not isinstance(boundary, str)
            or not boundary.isascii()
        ):
            raise BadUploadError(f"send multipart/form-data with the file in the field {FIELD!r}")
        self._take = take
        self._header_name = self._header_value = b""
        self._wanted = self.found = self.complete = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begins,
                    "on_header_field": self._header_names,
                    "on_header_value": self._header_holds,
                    "on_header_end": self._header_ends,
                    "on_part_data": self._part_holds,
                    "on_end": self._ends,
                },
            )
        except FormParserError as error:
            raise BadUploadError(f"the multipart boundary is not usable: {error}") from None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise BadUploadError(f"the multipart body is malformed: {error}") from None

    def _part_begins(self) -> None:
        self._wanted = False

    def _header_names(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_holds(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_ends(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            header = Message()
            header["content-disposition"] = self._header_value.decode("latin-1")
            if header.get_param("name", header="content-disposition") == FIELD:
                if self.found:
                    raise BadUploadError(f"the field {FIELD!r} is there twice; upload one file at a time")
                self._wanted = self.found = True
        self._header_name = self._header_value = b""

    def _part_holds(self, data: bytes, start: int, end: int) -> None:
        if self._wanted:
            self._take(data[start:end])

    def _ends(self) -> None:
        self.complete = True
