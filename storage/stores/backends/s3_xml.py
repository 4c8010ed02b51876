"""Parses XML documents from S3: pages of listings, upload results and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from concurrent_loader.storage.errors import ProtocolViolation

__all__ = ["S3Document", "read_document"]

_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class S3Document:
    """XML document from S3.

    Attributes:
        root: Name of the outermost element, without its namespace.
        fields: Texts of the elements below the root, by name.
        entries: Texts of the elements below each ``Contents`` element, by name.
    """

    root: str
    fields: dict[str, str] = field(default_factory=dict)
    entries: list[dict[str, str]] = field(default_factory=list)


def read_document(body: bytes) -> S3Document:
    """Parses a document, in memory proportional to its length.

    Raises:
        ProtocolViolation: The bytes are not well-formed XML, declare a document type (entities are declared
            there), or nest elements more than 16 deep.
    """
    names: list[str] = []
    texts: list[str] = []
    document = S3Document("")

    def start(name: str, _: object) -> None:
        nonlocal document
        name = name.rpartition(":")[2]
        names.append(name)
        texts.clear()
        match len(names):
            case 1:
                document = S3Document(name)
            case 2 if name == "Contents":
                document.entries.append({})
            case depth if depth > _MAX_DEPTH:
                raise ProtocolViolation("the response's XML is nested too deeply", expected=_MAX_DEPTH)

    def end(_: str) -> None:
        name, depth = names.pop(), len(names)
        if depth == 1 and name != "Contents":
            document.fields[name] = "".join(texts)
        elif depth == 2 and names[1] == "Contents":
            document.entries[-1][name] = "".join(texts)
        texts.clear()

    def refuse(*_: object) -> NoReturn:
        raise ProtocolViolation("the response's XML declares a document type")

    # Ignores the declared encoding, because S3 always sends UTF-8.
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise ProtocolViolation("the response is not well-formed XML", got=expat.ErrorString(error.code)) from error
    return document
