"""Exports WebDataset: uncompressed tar files, in which consecutive members with the same key form a sample.

Columns keep their names: the member of column ``image`` (JPEG) is ``000042.image.jpg``. A column that already has the
name of its ending, such as ``jpg`` or ``cls``, is not named twice: ``000042.jpg``.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np

from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.exporters.protocol import ExportColumn, ExportSpec, FileWriter, WrittenFile
from concurrent_loader.storage.exporters.sample_names import check_sample_key, image_suffix, without_image_suffix

__all__ = ["WebDataset"]

_LABELS = ("label", "cls")


class WebDataset:
    """Writes ``shard-000000.tar`` and so on, and an index for the ``wids`` library in ``index.json``.

    Args:
        spec: Contents of the export.

    Raises:
        ConfigurationError: Two columns differ only in case, which WebDataset ignores.
    """

    min_files = 0
    merged: str | None = None
    is_file_per_sample = False

    def __init__(self, spec: ExportSpec) -> None:
        self._spec = spec
        folded: dict[str, str] = {}
        for column in spec.columns:
            other = folded.setdefault(column.name.lower(), column.name)
            if other != column.name:
                raise ConfigurationError(
                    f"the columns {other} and {column.name} differ only in case, which WebDataset ignores; rename one "
                    f"by --columns {column.source}=NEWNAME",
                )

    def file_name(self, number: int) -> str:
        """Returns the name of a file, from its number."""
        return f"shard-{number:06d}.tar"

    def open(self, file: BinaryIO, num_samples: int) -> FileWriter:
        """Starts a tar file."""
        return _TarWriter(file, self._spec)

    def index(self, files: Sequence[WrittenFile]) -> dict[str, bytes]:
        """Returns ``index.json`` in the form that the ``wids`` library reads, with the columns' types in addition."""
        content = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "shardlist": [
                {"url": file.name, "nsamples": file.num_samples, "filesize": file.num_bytes} for file in files
            ],
            "columns": {column.name: column.type + "?" * column.optional for column in self._spec.columns},
            "classes": {column.name: column.classes for column in self._spec.columns if column.classes is not None},
        }
        return {"index.json": json.dumps(content, indent=1).encode()}


class _TarWriter:
    def __init__(self, file: BinaryIO, spec: ExportSpec) -> None:
        self._columns = spec.columns
        self._digits = spec.sample_digits
        self._key_column = spec.key_column
        self._keys: set[str] = set()
        # PAX headers appear only where the older ones do not suffice: for long names and members above 8 GiB.
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def write(self, sample: int, values: Mapping[str, Any], key: str | None) -> None:
        """Adds one member per column; none for a null."""
        name = f"{sample:0{self._digits}d}" if self._key_column is None else self._checked(key)
        for column in self._columns:
            if values[column.name] is None and column.optional:
                continue
            ending, data = _encoded(column, values[column.name])
            field = ending if column.name == ending else f"{column.name}.{ending}"
            info = tarfile.TarInfo(f"{name}.{field}")
            info.size = len(data)
            info.mode = 0o444
            self._tar.addfile(info, io.BytesIO(data))

    def close(self) -> None:
        """Writes the end of the archive."""
        self._tar.close()

    def abandon(self) -> None:
        """Does nothing."""

    def _checked(self, key: object) -> str:
        column = self._key_column or ""
        name = without_image_suffix(check_sample_key(key, column=column))
        if "." in name.rpartition("/")[2]:
            raise SchemaError(
                "a key has a dot, at which WebDataset would end it; number the samples instead (leave --key-column "
                "out)", column=column, got=name[:80],
            )  # fmt: skip
        if name in self._keys:
            raise SchemaError(
                "two samples have the same key; number the samples instead (leave --key-column out)",
                column=column, got=name[:80],
            )  # fmt: skip
        self._keys.add(name)
        return name


def _encoded(column: ExportColumn, value: Any) -> tuple[str, bytes]:
    """Returns the ending that WebDataset decodes the value by, and the bytes of the member."""
    if column.is_image:
        return image_suffix(value).removeprefix("."), value
    if column.type == "bytes":
        return "bin", value
    if column.type == "str":
        return "txt", value.encode()
    if column.type == "json":
        return "json", msgspec.json.encode(value, order="deterministic")
    if column.is_array:
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return "npy", file.getvalue()
    if column.is_integer and (column.classes is not None or column.name in _LABELS):
        return "cls", str(value).encode()
    return "json", json.dumps(value).encode()  # NaN and infinities as Python's json reads them
