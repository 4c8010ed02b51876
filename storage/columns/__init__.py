"""Adds, renames and drops columns of a dataset, without writing its shards again."""

from concurrent_loader.storage.columns.add import AddProgress, add_column, add_columns
from concurrent_loader.storage.columns.names import drop_column, rename_column
from concurrent_loader.storage.columns.values import NO_DEFAULT

__all__ = ["NO_DEFAULT", "AddProgress", "add_column", "add_columns", "drop_column", "rename_column"]
