"""The report of an import."""

from __future__ import annotations

from dataclasses import dataclass

from concurrent_loader.storage.importers.protocol import ImportProblem
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["IngestReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """The result of an import.

    Attributes:
        manifest: Committed snapshot.
        num_samples: Number of samples written by this import.
        num_bytes: Number of bytes of the imported files.
        num_ignored: Number of objects of the source that are not of its format.
        skipped: Files that could not be imported, in the order of the samples.
        duration_s: Seconds from the first listing to the commit.
        repeats: Whether the snapshot ``manifest`` already has this token or this source, so that nothing was added.

    Example:
        >>> from concurrent_loader.storage import ImageFolder, open_store
        >>> from concurrent_loader.storage.importers.ingest import ingest
        >>> report = ingest(ImageFolder(open_store("images")), "imported")
        >>> report.num_samples, report.num_skipped
        (6, 0)
    """

    manifest: Manifest
    num_samples: int
    num_bytes: int
    num_ignored: int
    skipped: tuple[ImportProblem, ...]
    duration_s: float
    repeats: bool = False

    @property
    def num_skipped(self) -> int:
        """Number of files that could not be imported."""
        return len(self.skipped)
