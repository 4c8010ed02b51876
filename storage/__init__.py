"""Bytes: from a URL to one verified sample, and from samples to a data set in a bucket. Knows no torch.

Names are imported when they are first used: object store clients take most of a second to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from storage.errors import (
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
    StorageError,
    StoreClosed,
    StoreError,
    Throttled,
    TransientError,
    TruncatedBody,
)

if TYPE_CHECKING:
    from storage.fetch import FetchEngine, FetchStats, HedgePolicy, RetryPolicy
    from storage.importers import ImageFolder
    from storage.ingest import IngestReport
    from storage.loop_thread import LoopThread
    from storage.shards.columns import Column, ColumnKind, Schema
    from storage.shards.manifest import Manifest
    from storage.shards.snapshots import load_manifest
    from storage.shards.verifying import VerifyReport, verify_dataset
    from storage.shards.writer import ShardWriter
    from storage.sizes import Size, format_size, parse_size
    from storage.stores.credentials import S3Credentials
    from storage.stores.opening import open_store
    from storage.stores.protocol import GetResult, ObjectMeta, Store

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "Column",
    "ColumnKind",
    "CommitConflict",
    "ConfigurationError",
    "ConnectionFailed",
    "CorruptData",
    "CredentialsExpired",
    "DatasetChanged",
    "DeadlineExceeded",
    "DigestMismatch",
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
    "RetryPolicy",
    "S3Credentials",
    "Schema",
    "SchemaError",
    "ServerError",
    "ShardWriter",
    "Size",
    "StorageError",
    "Store",
    "StoreClosed",
    "StoreError",
    "Throttled",
    "TransientError",
    "TruncatedBody",
    "VerifyReport",
    "format_size",
    "load_manifest",
    "open_store",
    "parse_size",
    "verify_dataset",
]

_HOMES = {
    "Column": "storage.shards.columns",
    "ColumnKind": "storage.shards.columns",
    "FetchEngine": "storage.fetch",
    "FetchStats": "storage.fetch",
    "GetResult": "storage.stores.protocol",
    "HedgePolicy": "storage.fetch",
    "ImageFolder": "storage.importers",
    "IngestReport": "storage.ingest",
    "LoopThread": "storage.loop_thread",
    "Manifest": "storage.shards.manifest",
    "ObjectMeta": "storage.stores.protocol",
    "RetryPolicy": "storage.fetch",
    "S3Credentials": "storage.stores.credentials",
    "Schema": "storage.shards.columns",
    "ShardWriter": "storage.shards.writer",
    "Size": "storage.sizes",
    "Store": "storage.stores.protocol",
    "VerifyReport": "storage.shards.verifying",
    "format_size": "storage.sizes",
    "load_manifest": "storage.shards.snapshots",
    "open_store": "storage.stores.opening",
    "parse_size": "storage.sizes",
    "verify_dataset": "storage.shards.verifying",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
