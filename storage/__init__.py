"""Reads and writes datasets in buckets: stores, fetching, caching, the shard format. Does not depend on torch.

Names are imported on first use, because the clients of object stores take most of a second to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    CommitConflict,
    ConfigurationError,
    ConnectionFailed,
    CorruptData,
    CredentialsExpired,
    DatasetChanged,
    DeadlineExceeded,
    DigestMismatch,
    FormatError,
    InvalidRange,
    NotFound,
    ObjectChanged,
    ProtocolViolation,
    SchemaError,
    ServerError,
    SnapshotDeleted,
    StorageError,
    StoreClosed,
    StoreError,
    Throttled,
    TransientError,
    TruncatedBody,
)

if TYPE_CHECKING:
    from concurrent_loader.storage.exporters.export import ExportReport
    from concurrent_loader.storage.fetch import FetchEngine, FetchStats, HedgePolicy, RetryPolicy
    from concurrent_loader.storage.importers import ImageFolder
    from concurrent_loader.storage.importers.ingest import IngestReport
    from concurrent_loader.storage.lifecycle.catalog import DatasetInfo, list_datasets
    from concurrent_loader.storage.lifecycle.copying import CopyProgress, CopyReport, copy_dataset
    from concurrent_loader.storage.lifecycle.diff import SnapshotDiff, diff_snapshots
    from concurrent_loader.storage.lifecycle.garbage import GarbageReport, collect_garbage
    from concurrent_loader.storage.lifecycle.snapshots import (
        SnapshotInfo,
        delete_tag,
        describe_snapshots,
        list_tags,
        tag_snapshot,
    )
    from concurrent_loader.storage.loop_thread import LoopThread
    from concurrent_loader.storage.shards.editing.compact import CompactReport, compact
    from concurrent_loader.storage.shards.editing.delete import DeleteReport, delete
    from concurrent_loader.storage.shards.editing.purge import PurgeReport, purge
    from concurrent_loader.storage.shards.format.schema import Column, ColumnKind, Schema
    from concurrent_loader.storage.shards.manifest.manifest import Manifest
    from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
    from concurrent_loader.storage.shards.verify import VerifyReport, verify_dataset
    from concurrent_loader.storage.shards.writing.writer import ShardWriter
    from concurrent_loader.storage.sizes import Size, format_size, parse_size
    from concurrent_loader.storage.stores.aws.credentials import S3Credentials
    from concurrent_loader.storage.stores.backends.open_store import open_store
    from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta
    from concurrent_loader.storage.stores.store import Store

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "Column",
    "ColumnKind",
    "CommitConflict",
    "CompactReport",
    "ConfigurationError",
    "ConnectionFailed",
    "CopyProgress",
    "CopyReport",
    "CorruptData",
    "CredentialsExpired",
    "DatasetChanged",
    "DatasetInfo",
    "DeadlineExceeded",
    "DeleteReport",
    "DigestMismatch",
    "ExportReport",
    "FetchEngine",
    "FetchStats",
    "FormatError",
    "GarbageReport",
    "GetResult",
    "HedgePolicy",
    "ImageFolder",
    "IngestReport",
    "InvalidRange",
    "LoopThread",
    "Manifest",
    "NotFound",
    "ObjectChanged",
    "ObjectMeta",
    "ProtocolViolation",
    "PurgeReport",
    "RetryPolicy",
    "S3Credentials",
    "Schema",
    "SchemaError",
    "ServerError",
    "ShardWriter",
    "Size",
    "SnapshotDeleted",
    "SnapshotDiff",
    "SnapshotInfo",
    "StorageError",
    "Store",
    "StoreClosed",
    "StoreError",
    "Throttled",
    "TransientError",
    "TruncatedBody",
    "VerifyReport",
    "collect_garbage",
    "compact",
    "copy_dataset",
    "delete",
    "delete_tag",
    "describe_snapshots",
    "diff_snapshots",
    "format_size",
    "list_datasets",
    "list_tags",
    "load_manifest",
    "open_store",
    "parse_size",
    "purge",
    "tag_snapshot",
    "verify_dataset",
]

_HOMES = {
    "Column": "concurrent_loader.storage.shards.format.schema",
    "ColumnKind": "concurrent_loader.storage.shards.format.schema",
    "CopyProgress": "concurrent_loader.storage.lifecycle.copying",
    "CopyReport": "concurrent_loader.storage.lifecycle.copying",
    "DatasetInfo": "concurrent_loader.storage.lifecycle.catalog",
    "CompactReport": "concurrent_loader.storage.shards.editing.compact",
    "DeleteReport": "concurrent_loader.storage.shards.editing.delete",
    "ExportReport": "concurrent_loader.storage.exporters.export",
    "FetchEngine": "concurrent_loader.storage.fetch",
    "FetchStats": "concurrent_loader.storage.fetch",
    "GarbageReport": "concurrent_loader.storage.lifecycle.garbage",
    "GetResult": "concurrent_loader.storage.stores.objects",
    "HedgePolicy": "concurrent_loader.storage.fetch",
    "ImageFolder": "concurrent_loader.storage.importers",
    "IngestReport": "concurrent_loader.storage.importers.ingest",
    "LoopThread": "concurrent_loader.storage.loop_thread",
    "Manifest": "concurrent_loader.storage.shards.manifest.manifest",
    "ObjectMeta": "concurrent_loader.storage.stores.objects",
    "PurgeReport": "concurrent_loader.storage.shards.editing.purge",
    "RetryPolicy": "concurrent_loader.storage.fetch",
    "S3Credentials": "concurrent_loader.storage.stores.aws.credentials",
    "Schema": "concurrent_loader.storage.shards.format.schema",
    "ShardWriter": "concurrent_loader.storage.shards.writing.writer",
    "Size": "concurrent_loader.storage.sizes",
    "SnapshotDiff": "concurrent_loader.storage.lifecycle.diff",
    "SnapshotInfo": "concurrent_loader.storage.lifecycle.snapshots",
    "Store": "concurrent_loader.storage.stores.store",
    "VerifyReport": "concurrent_loader.storage.shards.verify",
    "collect_garbage": "concurrent_loader.storage.lifecycle.garbage",
    "copy_dataset": "concurrent_loader.storage.lifecycle.copying",
    "delete_tag": "concurrent_loader.storage.lifecycle.snapshots",
    "describe_snapshots": "concurrent_loader.storage.lifecycle.snapshots",
    "diff_snapshots": "concurrent_loader.storage.lifecycle.diff",
    "compact": "concurrent_loader.storage.shards.editing.compact",
    "delete": "concurrent_loader.storage.shards.editing.delete",
    "format_size": "concurrent_loader.storage.sizes",
    "list_datasets": "concurrent_loader.storage.lifecycle.catalog",
    "list_tags": "concurrent_loader.storage.lifecycle.snapshots",
    "load_manifest": "concurrent_loader.storage.shards.manifest.snapshots",
    "open_store": "concurrent_loader.storage.stores.backends.open_store",
    "parse_size": "concurrent_loader.storage.sizes",
    "tag_snapshot": "concurrent_loader.storage.lifecycle.snapshots",
    "purge": "concurrent_loader.storage.shards.editing.purge",
    "verify_dataset": "concurrent_loader.storage.shards.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
