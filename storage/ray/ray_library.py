"""Imports the parts of Ray Data that the sink and the source need."""

from __future__ import annotations

from typing import Any

from concurrent_loader.storage.importers.optional_library import import_library

__all__ = ["BlockAccessor", "BlockMetadata", "Datasink", "Datasource", "ReadTask"]

_data = import_library("ray.data", extra="ray", package="ray[data]")
_block = import_library("ray.data.block", extra="ray", package="ray[data]")

Datasink: Any = _data.Datasink
Datasource: Any = _data.Datasource
ReadTask: Any = _data.ReadTask
BlockAccessor: Any = _block.BlockAccessor
BlockMetadata: Any = _block.BlockMetadata
