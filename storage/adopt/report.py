"""What an adoption plans, does and has done."""

from __future__ import annotations

from dataclasses import dataclass

from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["AdoptPlan", "AdoptProgress", "AdoptReport"]

_DOLLARS_PER_GET = 0.4e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptProgress:
    """The progress of an adoption.

    Attributes:
        num_bytes: Number of bytes read so far.
        num_bytes_total: Number of bytes to read.
        num_objects: Number of objects done.
        num_objects_total: Number of objects to scan.
        duration_s: Seconds since the scan began.
    """

    num_bytes: int
    num_bytes_total: int
    num_objects: int
    num_objects_total: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptPlan:
    """What an adoption would read.

    Attributes:
        columns: Column types by name.
        num_objects: Number of objects to scan.
        num_bytes: Number of bytes to read.
        num_requests: Number of GET requests for that.
        headers_bytes: Number of bytes to read with ``headers_only``, estimated from the first samples; None if the
            format has no headers that could be read alone.
        headers_requests: Number of GET requests for that, likewise.
        num_ignored: Number of objects that are not of the format.
    """

    columns: dict[str, str]
    num_objects: int
    num_bytes: int
    num_requests: int
    num_ignored: int
    headers_bytes: int | None = None
    headers_requests: int | None = None

    @property
    def dollars(self) -> float:
        """Price of the requests at $0.40 per million, as Amazon S3 charges in us-east-1."""
        return self.num_requests * _DOLLARS_PER_GET

    @property
    def headers_dollars(self) -> float | None:
        """Price of the requests with ``headers_only``."""
        return None if self.headers_requests is None else self.headers_requests * _DOLLARS_PER_GET


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptReport:
    """The result of an adoption.

    Attributes:
        plan: Amounts that were planned.
        manifest: Committed snapshot; with ``dry_run`` None.
        num_samples: Number of samples adopted by this run.
        num_resumed: Number of objects that an earlier, interrupted run had scanned.
        index_bytes: Number of bytes of the tails that this run's samples have in the index.
        duration_s: Seconds from the first listing to the commit.
    """

    plan: AdoptPlan
    manifest: Manifest | None
    num_samples: int = 0
    num_resumed: int = 0
    index_bytes: int = 0
    duration_s: float = 0.0
