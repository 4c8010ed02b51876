"""The unified shard format: samples in, one immutable file out, every value of it one verified range.

This package is the format and what is built on it; docs/format.md specifies the bytes.
"""

from __future__ import annotations

from storage.shards.builder import FinishedShard, ShardBuilder
from storage.shards.columns import Column, ColumnKind, Schema
from storage.shards.index import ShardIndex, verify_shard
from storage.shards.layout import CHUNK_BYTES, FOOTER_BYTES, HEADER_BYTES, Footer, parse_footer, parse_header

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
