"""Opens Parquet files with pyarrow: the footer, the places of row groups, and their rows, within limits on memory.

pyarrow is imported on first use, runs in the calling thread, and never sees more than the bytes of one row group. The
sizes that a file states are checked before pyarrow allocates memory for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from concurrent_loader.storage.errors import ConfigurationError, FormatError, StorageError
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.parquet_pages import chunk_cost, read_sizes
from concurrent_loader.storage.stores.objects import Buffer

__all__ = [
    "FOOTER_GUESS_BYTES",
    "MAX_FOOTER_BYTES",
    "MAX_ROW_GROUP_BYTES",
    "ParquetFooter",
    "RowGroup",
    "cut",
    "footer_bytes",
    "load_pyarrow",
    "too_large",
]

FOOTER_GUESS_BYTES = 64 << 10
MAX_FOOTER_BYTES = 16 << 20
MAX_ROW_GROUP_BYTES = 1 << 30
_MAGIC = b"PAR1"
_MAX_DEPTH = 64
_MAX_VALUES = 1 << 26
_MAX_STRING_BYTES, _MAX_CONTAINER = 16 << 20, 1_000_000  # of one text and one list in a footer
_BATCH_BYTES, _MAX_BATCH_ROWS = 16 << 20, 16384


@lru_cache(maxsize=1)
def load_pyarrow() -> tuple[Any, Any]:
    """Returns the modules ``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigurationError("Parquet files are read with pyarrow: pip install pyarrow") from error


def footer_bytes(last: Buffer, size: int) -> int:
    """Returns the size of a file's footer, with its length and magic.

    Args:
        last: Last bytes of the file, at least 8.
        size: Size of the file.

    Raises:
        FormatError: The file is not a Parquet file, is encrypted, or its footer is too large.
    """
    end = bytes(last[-8:])
    if end[4:] == b"PARE":
        raise FormatError("an encrypted Parquet file cannot be read")
    if size < 12 or end[4:] != _MAGIC:
        raise FormatError("not a Parquet file, or cut off: no magic at its end", expected=_MAGIC, got=end[4:])
    num_bytes = int.from_bytes(end[:4], "little") + 8
    if num_bytes > min(MAX_FOOTER_BYTES, size - 4):
        raise FormatError("the footer is too large", expected=f"<= {min(MAX_FOOTER_BYTES, size - 4)}", got=num_bytes)
    return num_bytes


class RowGroup(NamedTuple):
    """The place of some columns of a row group.

    Attributes:
        number: Number of the row group in its file.
        chunks: Ranges of the columns' chunks in the file.
        leaves: Numbers of the columns in the file, as Parquet counts them.
        num_rows: Number of rows.
        num_bytes: Size of the chunks, each compressed or not, whichever is more.
    """

    number: int
    chunks: list[ByteRange]
    leaves: list[int]
    num_rows: int
    num_bytes: int

    @property
    def span(self) -> ByteRange:
        """Smallest range that holds all chunks."""
        return ByteRange(min(each.start for each in self.chunks), max(each.end for each in self.chunks))


class ParquetFooter:
    """A parsed and checked footer.

    Args:
        data: The footer, as long as `footer_bytes` says.
        size: Size of the file.

    Raises:
        FormatError: The footer is damaged or hostile.

    Thread-safety: All methods may be called from any thread.
    """

    def __init__(self, data: Buffer, size: int) -> None:
        pa, pq = load_pyarrow()
        self.size = size
        self._places: dict[tuple[str, ...], dict[ByteRange, int]] = {}
        stated = read_sizes(memoryview(data)[:-8])
        if stated.depth > _MAX_DEPTH:
            raise FormatError("the columns are nested too deeply", expected=f"<= {_MAX_DEPTH}")
        try:
            self._file = pq.ParquetFile(
                pa.BufferReader(b"".join((_MAGIC, data))), pre_buffer=False,
                thrift_string_size_limit=_MAX_STRING_BYTES, thrift_container_size_limit=_MAX_CONTAINER,
            )  # fmt: skip
            self.metadata = self._file.metadata
            self.schema = self._file.schema_arrow
            self.paths: list[str] = [self.metadata.schema.column(at).path for at in range(self.metadata.num_columns)]
            self.max_repetition = [
                self.metadata.schema.column(at).max_repetition_level for at in range(self.metadata.num_columns)
            ]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"the footer is damaged: {error}") from error
        self._groups = stated.groups
        self.num_row_groups = len(stated.groups)
        if self.num_row_groups != self.metadata.num_row_groups or any(
            len(group.chunks) != len(self.paths) for group in stated.groups
        ):
            raise FormatError("the footer contradicts itself", expected=len(self.paths), got=self.num_row_groups)

    def num_rows(self, number: int) -> int:
        """Returns the number of rows of a row group."""
        return self._groups[number].num_rows

    @property
    def largest_group_bytes(self) -> int:
        """Size of the largest row group that the footer states, each column compressed or not, whichever is more."""
        groups = (sum(max(each.length, each.raw_bytes) for each in group.chunks) for group in self._groups)
        return max(groups, default=0)

    def row_group(self, number: int, paths: Sequence[str]) -> RowGroup:
        """Returns the place of columns in a row group.

        Raises:
            FormatError: A column is missing, or its place is impossible.
        """
        group = self._groups[number]
        leaves, chunks = [], []
        num_bytes = 0
        for path in paths:
            found = [at for at, leaf in enumerate(self.paths) if leaf == path or leaf.startswith(path + ".")]
            if not found:
                raise FormatError(
                    f"row group {number}: the file lacks a column", column=path, expected=paths, got=self.paths[:16]
                )
            for leaf in found:
                chunk = group.chunks[leaf]
                start, length = chunk.start, chunk.length
                if chunk.is_outside or start < 4 or start + length > self.size:
                    raise FormatError(
                        f"row group {number}: the place of a column is impossible", column=path, start=start, got=length
                    )
                if not 0 <= chunk.num_values <= _MAX_VALUES:
                    raise too_large(number, path, f"<= {_MAX_VALUES} values", chunk.num_values)
                num_bytes += max(length, chunk.raw_bytes)
                leaves.append(leaf)
                chunks.append(ByteRange(start, start + length))
        if num_bytes > MAX_ROW_GROUP_BYTES:
            raise too_large(number, None, f"<= {MAX_ROW_GROUP_BYTES} bytes", num_bytes)
        if not 0 <= group.num_rows <= _MAX_VALUES:
            raise too_large(number, None, f"<= {_MAX_VALUES} rows", group.num_rows)
        return RowGroup(number, chunks, leaves, group.num_rows, num_bytes)

    def row_group_at(self, span: ByteRange, paths: Sequence[str]) -> RowGroup:
        """Returns the row group whose columns fill a range.

        Raises:
            FormatError: There is none.
        """
        key = tuple(paths)
        if key not in self._places:
            numbers = [at for at in range(self.num_row_groups) if self.num_rows(at)]
            groups = (self.row_group(number, paths) for number in numbers)
            self._places[key] = {group.span: group.number for group in groups}
        number = self._places[key].get(span)
        if number is None:
            raise FormatError("no row group is at the place that the manifest states", start=span.start, end=span.end)
        return self.row_group(number, paths)

    def batches(self, group: RowGroup, paths: Sequence[str], chunks: Sequence[memoryview]) -> Iterator[Any]:
        """Yields the rows of a row group as record batches.

        Args:
            group: Place of the columns.
            paths: Paths of the columns.
            chunks: Bytes of the columns' chunks.

        Raises:
            FormatError: The columns are damaged, or decoding them would take too much memory.
        """
        pa, pq = load_pyarrow()
        num_rows = min(_MAX_BATCH_ROWS, self._check_cost(group, chunks))
        places = [(place.start, data) for place, data in zip(group.chunks, chunks, strict=True)]
        seen = 0
        try:
            file = pq.ParquetFile(
                pa.PythonFile(_ChunkFile(places, self.size), mode="r"), metadata=self.metadata, pre_buffer=False,
                page_checksum_verification=True,
            )  # fmt: skip
            batches = file.iter_batches(num_rows, row_groups=[group.number], columns=list(paths), use_threads=False)
            for batch in batches:
                batch.validate(full=True)
                seen += batch.num_rows
                yield batch
        except StorageError as error:
            _in_group(error, group.number)
            raise
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise FormatError(f"row group {group.number}: pyarrow cannot read it: {error}") from error
        if seen != group.num_rows:
            raise FormatError(f"row group {group.number} is cut off", expected=group.num_rows, got=seen)

    def _check_cost(self, group: RowGroup, chunks: Sequence[memoryview]) -> int:
        """Returns the number of rows that may be decoded at a time."""
        num_bytes, rows = 0, _MAX_BATCH_ROWS
        try:
            for leaf, data in zip(group.leaves, chunks, strict=True):
                cost = chunk_cost(data, self._groups[group.number].chunks[leaf].num_values)
                num_bytes += cost.num_bytes
                is_bytes = self.metadata.schema.column(leaf).physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
                if is_bytes and cost.max_repeated:
                    if self.max_repetition[leaf] and cost.max_repeated * cost.num_values > MAX_ROW_GROUP_BYTES:
                        raise too_large(
                            group.number, self.paths[leaf], f"<= {MAX_ROW_GROUP_BYTES} bytes", "a repeated large value"
                        )
                    rows = min(rows, max(1, 4 * _BATCH_BYTES // cost.max_repeated))
        except FormatError as error:
            _in_group(error, group.number)
            raise
        if num_bytes > 2 * MAX_ROW_GROUP_BYTES:
            raise too_large(group.number, None, f"<= {MAX_ROW_GROUP_BYTES} bytes", num_bytes)
        per_row = max(1, num_bytes // max(1, group.num_rows))
        return max(1, min(rows, _BATCH_BYTES // per_row))


def _in_group(error: StorageError, number: int) -> StorageError:
    if not error.what.startswith("row group "):
        error.what = f"row group {number}: {error.what}"
    return error


def too_large(number: int, column: str | None, expected: object, got: object) -> FormatError:
    """Returns the error for a row group that would need too much memory."""
    return FormatError(
        f"row group {number} is too large to be read in place; convert the files with "
        "`concurrent-loader ingest parquet`",
        column=column, expected=expected, got=got,
    )  # fmt: skip


class _ChunkFile:
    """The chunks of some columns, as a file for pyarrow."""

    closed = False

    def __init__(self, chunks: Sequence[tuple[int, memoryview]], size: int) -> None:
        self._chunks = chunks
        self._size = size
        self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + {0: 0, 1: self._at, 2: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, length: int) -> memoryview | bytes:
        at = self._at
        self._at += length
        for start, data in self._chunks:
            if start <= at < start + len(data):
                part = data[at - start : at - start + length]
                # pyarrow reads up to 100 bytes more for files of a writer that stated too small lengths.
                return part if len(part) == length else bytes(part) + bytes(min(100, length - len(part)))
        raise FormatError("pyarrow reads outside of the columns", start=at, end=at + length)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        """Does nothing: the file is read-only."""

    def close(self) -> None:
        """Does nothing: the caller owns the memory."""


def cut(span: ByteRange, data: memoryview, group: RowGroup) -> list[memoryview]:
    """Returns the chunks of a row group out of the range that holds all of them."""
    return [data[each.start - span.start : each.end - span.start] for each in group.chunks]
