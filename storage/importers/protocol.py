"""What `storage.ingest` asks of an importer: first what there is, then the samples in a fixed order."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Protocol

from storage.shards.manifest import Manifest

__all__ = ["ImportProblem", "ImportScan", "ImportedSample", "Importer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportScan:
    """What an importer found before it reads any sample.

    Attributes:
        columns: Name → type, for the writer.
        num_samples: That will come, problems included.
        num_bytes: Of the source's objects.
        num_ignored: Objects that are none of this format's and are left out.
        metadata: For the manifest.
        identity: Digest of what is imported and how. Two scans with the same identity yield the same samples. None if
            the source cannot promise this.
    """

    columns: dict[str, str]
    num_samples: int
    num_bytes: int
    num_ignored: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    identity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSample:
    """A sample, ready for the writer.

    Attributes:
        name: Of what it was made from, for messages.
        values: Column → value.
        num_bytes: Of the source's object.
        encoded_from: Column → bytes that its value had in the source, for columns that were encoded anew.
    """

    name: str
    values: dict[str, object]
    num_bytes: int
    encoded_from: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProblem:
    """An object that cannot become a sample.

    Attributes:
        name: Its key as it is; it may hold line breaks, and lone surrogates where a file name is not UTF-8.
        reason: For a person.
    """

    name: str
    reason: str


class Importer(Protocol):
    """A source of samples. Used from one event loop: `scan`, then `read` once, then `close`."""

    @property
    def url(self) -> str:
        """Of the source, without credentials."""
        ...

    async def scan(self, onto: Manifest | None = None) -> ImportScan:
        """Looks what there is.

        Args:
            onto: The snapshot that will be appended to: its columns and class numbers are to be kept.
        """
        ...

    def read(self) -> AsyncGenerator[ImportedSample | ImportProblem, None]:
        """Yields one item for each sample that `scan` counted, always in the same order."""
        ...

    async def close(self) -> None:
        """Releases the source's connections. Idempotent."""
        ...
