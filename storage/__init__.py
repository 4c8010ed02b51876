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
    "CorruptData",
    "CredentialsExpired",
    "DatasetChanged",
    "DeadlineExceeded",
    "DeleteReport",
    "DigestMismatch",
    "ExportReport",
    "FetchEngine",
    "FetchStats",
    "FormatError",
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
    "StorageError",
    "Store",
    "StoreClosed",
    "StoreError",
    "Throttled",
    "TransientError",
    "TruncatedBody",
    "VerifyReport",
    "compact",
    "delete",
    "format_size",
    "load_manifest",
    "open_store",
    "parse_size",
    "purge",
    "verify_dataset",
]

_HOMES = {
    "Column": "concurrent_loader.storage.shards.format.schema",
    "ColumnKind": "concurrent_loader.storage.shards.format.schema",
    "CompactReport": "concurrent_loader.storage.shards.editing.compact",
    "DeleteReport": "concurrent_loader.storage.shards.editing.delete",
    "ExportReport": "concurrent_loader.storage.exporters.export",
    "FetchEngine": "concurrent_loader.storage.fetch",
    "FetchStats": "concurrent_loader.storage.fetch",
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
    "Store": "concurrent_loader.storage.stores.store",
    "VerifyReport": "concurrent_loader.storage.shards.verify",
    "compact": "concurrent_loader.storage.shards.editing.compact",
    "delete": "concurrent_loader.storage.shards.editing.delete",
    "format_size": "concurrent_loader.storage.sizes",
    "load_manifest": "concurrent_loader.storage.shards.manifest.snapshots",
    "open_store": "concurrent_loader.storage.stores.backends.open_store",
    "parse_size": "concurrent_loader.storage.sizes",
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
