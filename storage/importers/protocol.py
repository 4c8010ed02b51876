"""The interface between importers and `concurrent_loader.storage.importers.ingest`.

An importer first scans its source, and then yields the samples in a fixed order.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["ImportProblem", "ImportScan", "ImportedSample", "Importer", "SampleSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportScan:
    """The result of scanning a source, before any sample is read.

    Attributes:
        columns: Column types by name.
        num_samples: Number of samples to expect, including problems; None if only reading the source shows it.
        num_bytes: Size of the source's objects in bytes.
        num_ignored: Number of objects that are not of this format and are left out.
        metadata: Metadata for the manifest.
        identity: Digest of the source and of the import options. Scans with the same identity yield the same samples.
            None if the source cannot guarantee this.
        derived: Columns whose type was derived from the first samples, so that a later value may not fit. An error then
            tells how to choose another type.

    Example:
        >>> from concurrent_loader.storage.importers import ImportScan
        >>> ImportScan(columns={"x": "int64"}, num_samples=3, num_bytes=24).num_ignored
        0
    """

    columns: dict[str, str]
    num_samples: int | None
    num_bytes: int
    num_ignored: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    identity: str | None = None
    derived: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSample:
    """A sample for the writer.

    Attributes:
        name: Name of the source's object, for messages.
        values: Values by column name.
        num_bytes: Size of the source's object in bytes.
        encoded_from: Size of the value in the source, in bytes, by column name; for columns that were encoded again.

    Example:
        >>> from concurrent_loader.storage.importers import ImportedSample
        >>> ImportedSample(name="row 0", values={"x": 1}, num_bytes=8).values
        {'x': 1}
    """

    name: str
    values: dict[str, object]
    num_bytes: int
    encoded_from: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProblem:
    """An object that cannot become a sample.

    Attributes:
        name: Unchanged key, which may hold line breaks, and lone surrogates if a file name is not UTF-8.
        reason: Reason in words.

    Example:
        >>> from concurrent_loader.storage.importers import ImportProblem
        >>> ImportProblem(name="a.jpg", reason="the file is empty").name
        'a.jpg'
    """

    name: str
    reason: str


class Importer(Protocol):
    """A source of samples. Used from one event loop: `scan`, then `read` once, then `close`.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import ImageFolder, open_store
        >>> from concurrent_loader.storage.importers import Importer
        >>> async def count(importer: Importer):
        ...     scan = await importer.scan()
        ...     await importer.close()
        ...     return scan.num_samples
        >>> asyncio.run(count(ImageFolder(open_store("images"))))
        6
    """

    @property
    def url(self) -> str:
        """URL of the source, without credentials."""
        ...

    async def scan(self, onto: Manifest | None = None) -> ImportScan:
        """Scans the source.

        Args:
            onto: Snapshot to append to, whose columns and class numbers must be kept; None for a new dataset.
        """
        ...

    def read(self) -> AsyncGenerator[ImportedSample | ImportProblem, None]:
        """Yields one item for each sample that `scan` counted, always in the same order."""
        ...

    async def close(self) -> None:
        """Releases the source's connections. Idempotent."""
        ...


class SampleSource(Protocol):
    """A simple, synchronous source of samples: columns, and an iterator of dicts.

    `concurrent_loader.storage.importers.ingest.ingest` accepts it in place of an `Importer`. The iterator runs on a
    thread of its own. An item may also be an `ImportedSample`, which names the sample for messages, or an
    `ImportProblem`. Optional attributes of a source:

    - ``url`` (str): URL of the source for messages.
    - ``num_samples`` (int): number of samples, for the progress bar.
    - ``metadata`` (dict): metadata for the manifest, such as ``{"classes": {"label": ["cat", "dog"]}}``.
    - ``identity`` (str): digest of the source, so that appending the same source twice adds it once.

    Example:
        >>> from concurrent_loader import ingest
        >>> class Squares:
        ...     columns = {"square": "int64"}
        ...     def __iter__(self):
        ...         return ({"square": number**2} for number in range(4))
        >>> ingest(Squares(), "some-squares").num_samples
        4
    """

    @property
    def columns(self) -> Mapping[str, str]:
        """Column types by name."""
        ...

    def __iter__(self) -> Iterator[Mapping[str, object] | ImportedSample | ImportProblem]:
        """Yields one dict per sample, with a value for each column."""
        ...
