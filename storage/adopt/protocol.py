"""The interface between foreign formats and `concurrent_loader.storage.adopt.adopt`.

A format lists the objects of a source, and walks through one object at a time. The walk finds the samples and the
place of each value; nothing is copied. Formats are plain synchronous code over an `ObjectReader`, so that a test or a
fuzzer runs them over bytes in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.ranges import ByteRange

__all__ = [
    "BytesReader",
    "ForeignColumn",
    "ForeignFormat",
    "FoundSample",
    "ObjectReader",
    "SmallObjects",
    "SourceObject",
    "SparseReader",
    "Unit",
    "UnitFormat",
    "check_inside",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceObject:
    """One object of a source that holds samples.

    Attributes:
        entry: Key relative to the source's URL, size in bytes and ETag.
        info: Facts from the source's own index that the walk needs, such as the number of samples. ``compression``
            names the compression of an object that is decompressed as a whole.
    """

    entry: ObjectEntry
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignColumn:
    """A column that a format offers.

    Attributes:
        type: Column type of this project, such as ``"jpeg"``, ``"int64"`` or ``"int32[...]"``.
        encoding: Name of the value's encoding in the source, as registered in
            `concurrent_loader.storage.shards.format.foreign_codecs`; empty if the source's bytes are exactly the stored
            form of ``type``. Only payload columns may have an encoding.
        field: Name of the field that holds the value, where the source has a struct in place of a value.
        classes: Names of the classes of a column of labels, where label i is the i-th; they become metadata.
        unit: Type of the times that a column of integers counts, such as ``"timestamp[us]"``; empty for other columns.
    """

    type: str
    encoding: str = ""
    field: str = ""
    classes: tuple[str, ...] = ()
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """A range of an object whose payload is not the range itself, but is made from it, such as a row group.

    Attributes:
        start: First byte of the range.
        end: One past the last byte.
        payload: The payload, exactly as the transform of the object gives it to readers.
        num_samples: Number of samples, so that the unit is finished before the walk goes on; 0 if it is not known.
    """

    start: int
    end: int
    payload: memoryview
    num_samples: int = 0


@dataclass(frozen=True, slots=True)
class FoundSample:
    """A sample at its place.

    Attributes:
        name: Name of the sample for messages, such as its key in a tar file. Not necessarily unique.
        start: First byte of the sample in the object, including its headers.
        end: One past the last byte.
        values: For payload columns, the range of the value's bytes in the object, within [start, end). For other
            columns either a range, whose bytes `ForeignFormat.parse` turns into a value, or the value itself.
        unit: Unit of the sample. All ranges of such a sample are ranges of the unit's payload. The samples of one unit
            become one virtual shard.
    """

    name: str
    start: int
    end: int
    values: dict[str, ByteRange | Any]
    unit: Unit | None = None


class ObjectReader(Protocol):
    """The bytes of one object. Reading forward is fast; recently read bytes are kept."""

    @property
    def size(self) -> int:
        """Size of the object in bytes."""
        ...

    @property
    def name(self) -> str:
        """Key of the object, for messages."""
        ...

    def read(self, start: int, end: int) -> memoryview:
        """Returns exactly the bytes [start, end).

        Raises:
            FormatError: The range is not inside the object. A walk need not check the ranges that it reads.
            StorageError: The bytes could not be fetched.
        """
        ...


@runtime_checkable
class SparseReader(ObjectReader, Protocol):
    """An `ObjectReader` of which a walk should read as little as possible, because each jump is a request."""

    def expect(self, positions: Iterable[int]) -> None:
        """Announces positions that will be read, in ascending order, so that they are fetched ahead."""
        ...


class SmallObjects(Protocol):
    """The objects of a source by key, for small files such as ``index.json``."""

    def get(self, key: str, *, max_bytes: int) -> bytes | None:
        """Returns an object, or None if there is none of this key.

        Raises:
            FormatError: The object is larger than ``max_bytes``.
            StorageError: The object could not be fetched.
        """
        ...


class ForeignFormat(Protocol):
    """A format that is read in place. Methods are called on threads; the format keeps no state between them."""

    @property
    def name(self) -> str:
        """Name on the command line."""
        ...

    def objects(self, entries: Sequence[ObjectEntry], small: SmallObjects) -> list[SourceObject]:
        """Returns the objects that hold samples, in the order of the samples.

        Args:
            entries: All objects of the source, sorted by key.
            small: Access to small objects, such as indexes.

        Raises:
            FormatError: The source is not of this format, or has a form that cannot be read in place. The message names
                the way out.
        """
        ...

    def columns(self, source: SourceObject, reader: ObjectReader) -> dict[str, ForeignColumn]:
        """Derives the columns from the first object: from its own header, or from its first few hundred samples."""
        ...

    def retype(self, source: SourceObject, column: str, type_: str) -> ForeignColumn:
        """Returns a column with the type that a user asked for with ``--column NAME=TYPE``.

        Raises:
            FormatError: The values cannot be read as this type.
            SchemaError: The type is invalid.
        """
        ...

    def walk(
        self, source: SourceObject, reader: ObjectReader, columns: Mapping[str, ForeignColumn]
    ) -> Iterator[FoundSample]:
        """Yields the samples of one object in ascending order; they do not overlap.

        Args:
            source: The object.
            reader: Its bytes.
            columns: The columns of the dataset. Every sample must have all of them. Other fields that a sample has
                are yielded as well: adoption refuses them, unless the user chose the columns.

        Raises:
            FormatError: The object is damaged, hostile, or does not fit the columns; the message names the sample.
        """
        ...

    def parse(self, column: str, type_: str, data: memoryview) -> object:
        """Returns the value of a column that is not payload, from its bytes in the object.

        Raises:
            ValueError: The bytes are not a value of this type.
        """
        ...


@runtime_checkable
class UnitFormat(Protocol):
    """A `ForeignFormat` whose samples have units."""

    def transform(self, columns: Mapping[str, ForeignColumn]) -> str:
        """Returns the name of the transform that makes the payload of units from their ranges.

        It is a name that `concurrent_loader.storage.shards.format.transforms` knows; empty if there is no payload.
        """
        ...

    def max_threads(self, reader: ObjectReader) -> int:
        """Returns how many objects like this one may be scanned at the same time, because units take memory.

        Each thread keeps some memory of its largest unit, whatever the limits on what is in use.
        """
        ...


class BytesReader:
    """An object in memory.

    Args:
        data: Bytes of the object.
        name: Name for messages.

    Example:
        >>> from concurrent_loader.storage.adopt.protocol import BytesReader
        >>> bytes(BytesReader(b"hello").read(1, 3))
        b'el'
    """

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "object") -> None:
        self._data = memoryview(data).cast("B").toreadonly()
        self.size = len(self._data)
        self.name = name

    def read(self, start: int, end: int) -> memoryview:
        """Returns exactly the bytes [start, end)."""
        check_inside(start, end, self.size, self.name)
        return self._data[start:end]

    def close(self) -> None:
        """Does nothing: the caller owns the memory."""


def check_inside(start: int, end: int, size: int, name: str) -> None:
    """Checks that a range lies in an object.

    Raises:
        FormatError: It does not.
    """
    if not 0 <= start <= end <= size:
        raise FormatError(
            "the object ends early, or states a wrong position", key=name, start=start, end=end, expected=size
        )
