"""The unified shard format: immutable files of samples, in which every value is one verified range.

docs/reference/format.md specifies the bytes.
"""

from __future__ import annotations

from concurrent_loader.storage.shards.format.builder import FinishedShard, ShardBuilder
from concurrent_loader.storage.shards.format.index import ShardIndex, verify_shard
from concurrent_loader.storage.shards.format.layout import (
    CHUNK_BYTES,
    FOOTER_BYTES,
    HEADER_BYTES,
    Footer,
    parse_footer,
    parse_header,
)
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind, Schema

__all__ = [
    "CHUNK_BYTES",
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "Column",
    "ColumnKind",
    "FinishedShard",
    "Footer",
    "Schema",
    "ShardBuilder",
    "ShardIndex",
    "parse_footer",
    "parse_header",
    "verify_shard",
]
