"""Adds, renames and drops columns of a dataset, without writing its shards again."""

from concurrent_loader.storage.columns.add import AddProgress, add_column, add_columns
from concurrent_loader.storage.columns.names import drop_column, rename_column

__all__ = ["AddProgress", "add_column", "add_columns", "drop_column", "rename_column"]
