"""Imports Parquet files, such as the ones of Hugging Face datasets, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from concurrent_loader.storage.importers.arrow_files import ArrowSource
from concurrent_loader.storage.importers.optional_library import import_library

__all__ = ["ParquetFiles"]

_BATCH_BYTES = 8 << 20
_MAX_BATCH_ROWS = 1024
_READ_BYTES = 1 << 20


class ParquetFiles(ArrowSource):
    """Imports Parquet files, in the order of their names and rows.

    Columns keep their names. Numbers, texts, bytes and lists of numbers have column types of their own. Images (also as
    the ``Image`` struct of datasets) are stored as encoded bytes, and other nested values as json. Class names of
    ``ClassLabel`` go into the manifest. Columns that have nulls become optional, such as ``int64?``. Needs the extra
    ``parquet``.

    Args:
        source: URL or path of a Parquet file, or of a folder with Parquet files.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of columns to leave out; their data are not read.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import ParquetFiles
        >>> pyarrow.parquet.write_table(pyarrow.table({"x": [1.5, 2.5], "ids": [[1], [2, 3]]}), "t.parquet")
        >>> ingest(ParquetFiles("t.parquet"), "from-parquet").manifest.schema
        {'x': 'float64', 'ids': 'int64[...]'}
    """

    SUFFIXES = (".parquet", ".pq")
    WHAT = "a Parquet file"
    NAME = "parquet"

    def _open(self, file: BinaryIO) -> Any:
        parquet = import_library("pyarrow.parquet", extra="parquet", package="pyarrow")
        return parquet.ParquetFile(file, buffer_size=_READ_BYTES, pre_buffer=False)

    def _schema(self, opened: Any) -> Any:
        return opened.schema_arrow

    def _facts(self, opened: Any) -> tuple[int | None, frozenset[str]]:
        """Returns the number of rows, and the names of the columns that have nulls."""
        metadata = opened.metadata
        with_nulls = set()
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                statistics = column.statistics
                if statistics is not None and statistics.has_null_count and statistics.null_count:
                    with_nulls.add(column.path_in_schema.removesuffix(".bytes"))  # the bytes of an image
        return metadata.num_rows, frozenset(with_nulls)

    def _batches(self, opened: Any, names: list[str]) -> Iterator[Any]:
        metadata = opened.metadata
        num_bytes = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        rows = min(max(1, _BATCH_BYTES * metadata.num_rows // max(1, num_bytes)), _MAX_BATCH_ROWS)
        yield from opened.iter_batches(batch_size=rows, columns=names, use_threads=False)
