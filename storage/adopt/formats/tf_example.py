"""Finds the features of a serialized ``tf.train.Example`` without TensorFlow or a protobuf library.

The messages, with the numbers of their fields::

    Example    { Features features = 1; }
    Features   { map<string, Feature> feature = 1; }        an entry of a map is { string key = 1; Feature value = 2; }
    Feature    { BytesList = 1 | FloatList = 2 | Int64List = 3 }
    BytesList  { repeated bytes value = 1; }

Unknown fields are skipped, as protobuf requires. What protobuf would merge (a field twice) is an error here, because no
writer writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from concurrent_loader.storage.adopt.formats.foreign_values import IMPORT_INSTEAD
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.protobuf_lists import read_varint
from concurrent_loader.storage.shards.format.schema import MAX_COLUMNS

__all__ = ["FEATURE_KINDS", "Feature", "parse_example"]

FEATURE_KINDS = {1: "bytes", 2: "float", 3: "int64"}
"""Number of the field in ``Feature`` → name of the kind; a feature without a list has the kind ``""``."""

_MAX_NAME_BYTES = 256
_FEATURE_LISTS = 2
_WIRE_VARINT, _WIRE_I64, _WIRE_CHUNK, _WIRE_I32 = 0, 1, 2, 5

Span = tuple[int, int]


class Feature(NamedTuple):
    """The list of one feature.

    Attributes:
        kind: ``"bytes"``, ``"float"``, ``"int64"``, or empty if the feature has no list.
        start: Start of the list's message in the example.
        end: One past its last byte.
    """

    kind: str
    start: int
    end: int


def parse_example(view: memoryview) -> dict[str, Feature]:
    """Returns the features of an example by their names.

    Raises:
        FormatError: The bytes are not an example, a feature occurs twice, or there are too many.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.tf_example import parse_example
        >>> parse_example(memoryview(bytes.fromhex("0a0c 0a0a 0a0161 1205 1a03 0a0107")))
        {'a': Feature(kind='int64', start=11, end=14)}
    """
    features: dict[str, Feature] = {}
    found = None
    for number, span in _chunks(view, (0, len(view))):
        if number == _FEATURE_LISTS:
            raise FormatError(f"the record is a SequenceExample, which cannot be read in place: {IMPORT_INSTEAD}")
        if number == 1 and found is not None:
            raise FormatError("an example has two sets of features")
        found = span if number == 1 else found
    for number, span in _chunks(view, found or (0, 0)):
        if number != 1:
            continue
        name, feature = _entry(view, span)
        if name in features:
            raise FormatError("an example has a feature twice", got=name[:80])
        if len(features) == MAX_COLUMNS:
            raise FormatError("an example has too many features", expected=f"<= {MAX_COLUMNS}")
        features[name] = feature
    return features


def _entry(view: memoryview, span: Span) -> tuple[str, Feature]:
    """Returns an entry of the map of features."""
    parts: dict[int, Span] = {}
    for number, part in _chunks(view, span):
        if number in parts:
            raise FormatError("a feature has two names or values", got=number)
        if number in (1, 2):
            parts[number] = part
    start, end = parts.get(1, (span[0], span[0]))
    if end - start > _MAX_NAME_BYTES:
        raise FormatError("the name of a feature is too long", expected=f"<= {_MAX_NAME_BYTES} bytes", got=end - start)
    try:
        name = str(view[start:end], "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError("the name of a feature is not UTF-8", got=bytes(view[start:end])) from error
    feature = Feature("", span[0], span[0])
    for number, (first, last) in _chunks(view, parts.get(2, (0, 0))):
        if number not in FEATURE_KINDS:
            continue
        if feature.kind:
            raise FormatError("a feature has two lists", got=name[:80])
        feature = Feature(FEATURE_KINDS[number], first, last)
    return name, feature


def _chunks(view: memoryview, span: Span) -> Iterator[tuple[int, Span]]:
    """Yields number and range of the fields of a message that have a length; others are skipped.

    Raises:
        FormatError: A field is cut off, or has an invalid tag.
    """
    position, end = span
    message = view[:end]
    while position < end:
        tag, position = read_varint(message, position)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number < 1 << 29:
            raise FormatError("a protobuf field has an invalid number", got=number)
        start = position
        if wire == _WIRE_CHUNK:
            length, start = read_varint(message, position)
            position = start + length
        elif wire == _WIRE_VARINT:
            _, position = read_varint(message, position)
        elif wire in (_WIRE_I32, _WIRE_I64):
            position += 4 if wire == _WIRE_I32 else 8
        else:
            raise FormatError("a protobuf field has an unknown form", got=wire)
        if position > end:
            raise FormatError("a protobuf field ends early", expected=position, got=end)
        if wire == _WIRE_CHUNK:
            yield number, (start, position)
