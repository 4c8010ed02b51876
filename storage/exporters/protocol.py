"""The interface between formats and `concurrent_loader.storage.exporters.export`.

A format names its files, and writes the samples of one file at a time. Formats are plain synchronous code that runs on
threads. Fetching, verification, upload, resume and limits are the same for all formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np

from concurrent_loader.storage.images import COLUMN_FORMATS

__all__ = ["ExportColumn", "ExportFormat", "ExportSpec", "FileWriter", "WrittenFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportColumn:
    """A column to export.

    Attributes:
        name: Name of the column in the export.
        source: Name of the column in the dataset.
        type: Type of the values that the format receives. It is the column's own type, except that lossless images
            arrive as ``"png"``.
        dtype: Dtype of numbers and arrays; None for other types.
        shape: Shape of one value: ``()`` for numbers; None for ragged arrays and for other types.
        classes: Class names by label; None for a column without class names.
        is_lossless: Whether the stored values are lossless images, which arrive as PNG.
        optional: Whether values may be None. ``type`` is the type of the others.
    """

    name: str
    source: str
    type: str
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    classes: tuple[str, ...] | None = None
    is_lossless: bool = False
    optional: bool = False

    @property
    def is_image(self) -> bool:
        """Whether the values are image files."""
        return self.type in COLUMN_FORMATS and self.type != "image/lossless"

    @property
    def is_array(self) -> bool:
        """Whether the values are arrays, of one shape or ragged."""
        return self.dtype is not None and self.shape != ()

    @property
    def is_integer(self) -> bool:
        """Whether the values are single integers."""
        return self.dtype is not None and self.shape == () and self.dtype.kind in "iu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSpec:
    """The contents of an export, from which a format is created.

    Attributes:
        columns: Columns in the order of the export.
        num_samples: Number of samples in the snapshot.
        num_files: Number of files to write.
        key_column: Name in the dataset of the column that names the samples; None to number them.
    """

    columns: tuple[ExportColumn, ...]
    num_samples: int
    num_files: int
    key_column: str | None = None

    @property
    def sample_digits(self) -> int:
        """Number of digits of a sample number in names: 6 or more, the same for all samples."""
        return max(6, len(str(max(0, self.num_samples - 1))))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A finished file.

    Attributes:
        name: Name of the file.
        num_samples: Number of samples in the file.
        num_bytes: Size of the file.
    """

    name: str
    num_samples: int
    num_bytes: int


class FileWriter(Protocol):
    """Writes the samples of one file, from one thread at a time. Ends with `close` or `abandon`."""

    def write(self, sample: int, values: Mapping[str, Any], key: str | None) -> tuple[str, bytes] | None:
        """Writes one sample.

        Args:
            sample: Number of the sample in the dataset.
            values: Values by the columns' names in the export: bytes of files, str, numbers, NumPy arrays, JSON values.
            key: Value of the key column, if one is set.

        Returns:
            Name and bytes of a file of the sample's own, which the caller publishes before the file of the writer; None
            if the format has no such files.

        Raises:
            SchemaError: The format cannot hold the value.
        """
        ...

    def close(self) -> None:
        """Completes the file. Leaves the file object open."""
        ...

    def abandon(self) -> None:
        """Releases resources after an error, before the file is deleted. Writes nothing later."""
        ...


class ExportFormat(Protocol):
    """A format, created from an `ExportSpec`.

    Creation raises `SchemaError` or `ConfigurationError` if the format cannot hold the columns.

    Attributes:
        min_files: Number of files to write for a dataset without samples.
        merged: Name of a file that the written files are joined into at the end; they are then deleted. None to keep
            them.
        is_file_per_sample: Whether `FileWriter.write` returns a file for each sample.
    """

    min_files: int
    merged: str | None
    is_file_per_sample: bool

    def file_name(self, number: int) -> str:
        """Returns the name of a file, from its number."""
        ...

    def open(self, file: BinaryIO, num_samples: int) -> FileWriter:
        """Starts a file.

        Args:
            file: New file to write to; seekable.
            num_samples: Number of samples that will be written.
        """
        ...

    def index(self, files: Sequence[WrittenFile]) -> dict[str, bytes]:
        """Returns the files that are written last, by name: indexes, without which the export is incomplete."""
        ...
