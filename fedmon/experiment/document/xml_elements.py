"""XML from anywhere as elements: no document types, no entities, and no more of it than an experiment needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from defusedxml import ElementTree as SafeTree
from defusedxml.common import DefusedXmlException

from fedmon.experiment.document.errors import (
    DescriptionError,
    DocumentTooLargeError,
    MalformedDocumentError,
    UnsafeXmlError,
)

MAX_BYTES = 128 * 2**20
MAX_DEPTH = 16
MAX_ELEMENTS = 4_000_000
_PIECE = 2**16


class Element:
    """One element: its name, its attributes and what is in it; text between elements says nothing and is left out."""

    __slots__ = ("attributes", "children", "tag")

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.children: list[Element] = []

    def each(self, *path: str) -> Iterator[Element]:
        """Return the elements at a path of names, in their order."""
        if not path:
            yield self
            return
        for child in self.children:
            if child.tag == path[0]:
                yield from child.each(*path[1:])

    def below(self, tag: str) -> Iterator[Element]:
        """Return the elements of a name at any depth, in their order."""
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.below(tag)

    def needed(self, name: str, *, where: str) -> str:
        """Return an attribute that must be there. Raises DescriptionError."""
        value = self.attributes.get(name)
        if value is None:
            raise DescriptionError(f"{where}: <{self.tag}> has no {name!r}")
        return value


class _Builder:
    """Takes the events of a parser. Whatever is wrong is raised out of it, so nothing is kept of what is too much."""

    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes)
        self._count += 1
        if len(self._open) >= MAX_DEPTH:
            raise DocumentTooLargeError(f"the XML is nested more than {MAX_DEPTH} deep, which no experiment is")
        if self._count > MAX_ELEMENTS:
            raise DocumentTooLargeError(f"the XML has more than {MAX_ELEMENTS} elements")
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, tag: str) -> None:
        del tag
        self._open.pop()

    def data(self, text: str) -> None:
        del text

    def close(self) -> Element | None:
        return self.root


def parse(source: bytes | str) -> Element:
    """Return the root of an XML text. Raises MalformedDocumentError, UnsafeXmlError and DocumentTooLargeError."""
    if len(source) > MAX_BYTES:
        raise DocumentTooLargeError(f"the XML has more than {MAX_BYTES} bytes")
    parser: Any = SafeTree.XMLParser(target=_Builder(), forbid_dtd=True)
    try:
        # In pieces, so that a refusal in the first of them ends it.
        for start in range(0, len(source), _PIECE):
            parser.feed(source[start : start + _PIECE])
        root: Element | None = parser.close()
    except DefusedXmlException as error:
        raise UnsafeXmlError(
            "the XML declares a document type or entities; an experiment needs neither: take the declaration out"
        ) from error
    except (SafeTree.ParseError, LookupError, UnicodeError, ValueError) as error:
        if isinstance(error, DescriptionError):
            raise
        raise MalformedDocumentError(f"this is not XML: {error}") from error
    if root is None:
        raise MalformedDocumentError("this is not XML: there is no element")
    return root
