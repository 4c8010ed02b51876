"""Exports an image folder: ``CLASS/000042.jpg``, and ``metadata.jsonl`` for all columns that folders cannot express."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.exporters.protocol import ExportColumn, ExportSpec, FileWriter, WrittenFile
from concurrent_loader.storage.exporters.sample_names import (
    check_folder_name,
    check_sample_key,
    image_suffix,
    without_image_suffix,
)

__all__ = ["ImageFolders"]

_METADATA = "metadata.jsonl"


class ImageFolders:
    """Writes one file per image, in one folder per class.

    The label column is the integer column with class names; without one, the integer column ``label``, whose folders
    are named by numbers; without both, there are no class folders. ``metadata.jsonl`` is written if there are more
    columns than image and label. It then has the label, too, because Hugging Face datasets ignores folders beside it.

    Args:
        spec: Contents of the export.

    Raises:
        ConfigurationError: There is not exactly one image column, there are several label columns, or a column's name
            has a meaning in ``metadata.jsonl``.
        SchemaError: A column or a class name cannot be exported.
    """

    min_files = 0
    merged: str | None = None
    is_file_per_sample = True

    def __init__(self, spec: ExportSpec) -> None:
        images = [column for column in spec.columns if column.is_image]
        if len(images) != 1:
            raise ConfigurationError(
                "an image folder holds exactly one image column; choose columns by --columns (columns=)",
                got=[column.name for column in images],
            )
        self._spec = spec
        self._image = images[0]
        self._label = _label_column(spec.columns)
        self._folders = () if self._label is None else _class_folders(self._label)
        others = [column for column in spec.columns if column not in (self._image, self._label)]
        self._in_metadata = tuple(column for column in spec.columns if column is not self._image) if others else ()
        for column in self._in_metadata:
            _check_metadata(column)
        if self._in_metadata:
            self.merged = _METADATA

    def file_name(self, number: int) -> str:
        """Returns the name of a part of the metadata, which exists only until the end of the export."""
        return f".concurrent-loader/metadata-{number:06d}.jsonl"

    def open(self, file: BinaryIO, num_samples: int) -> FileWriter:
        """Starts a part of the metadata."""
        return _FolderWriter(file, self._spec, self._image, self._label, self._folders, self._in_metadata)

    def index(self, files: Sequence[WrittenFile]) -> dict[str, bytes]:
        """Returns no file."""
        return {}


class _FolderWriter:
    def __init__(
        self,
        file: BinaryIO,
        spec: ExportSpec,
        image: ExportColumn,
        label: ExportColumn | None,
        folders: Sequence[str],
        in_metadata: Sequence[ExportColumn],
    ) -> None:
        self._file = file
        self._spec = spec
        self._image = image
        self._label = label
        self._folders = folders
        self._in_metadata = in_metadata

    def write(self, sample: int, values: Mapping[str, Any], key: str | None) -> tuple[str, bytes]:
        """Returns the image's file, and writes a line of the metadata."""
        data = values[self._image.name]
        for column in (self._image, self._label):
            if column is not None and values[column.name] is None:
                raise SchemaError(
                    "a sample without an image or without a label has no place in a folder of images; delete such "
                    "samples, or leave the label out by --columns (columns=)", column=column.source, sample=sample,
                )  # fmt: skip
        name = f"{sample:0{self._spec.sample_digits}d}"
        if self._spec.key_column is not None:
            name = without_image_suffix(check_sample_key(key, column=self._spec.key_column))
        folder = "" if self._label is None else self._folder(values[self._label.name])
        if not name.startswith(folder):  # a key such as cat/0.jpg names its class already
            name = folder + name
        name += image_suffix(data)
        if self._in_metadata:
            line = {"file_name": name}
            line |= {column.name: _plain(column, values[column.name]) for column in self._in_metadata}
            self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        return name, data

    def close(self) -> None:
        """Does nothing: every line is complete."""

    def abandon(self) -> None:
        """Does nothing."""

    def _folder(self, label: int) -> str:
        assert self._label is not None
        if self._label.classes is None:
            if label < 0:
                raise SchemaError(
                    "a label without a class name must not be negative", column=self._label.source, got=label
                )
            return f"{label:05d}/"
        if not 0 <= label < len(self._folders):
            raise SchemaError(
                "the label has no class name", column=self._label.source, expected=f"0 to {len(self._folders) - 1}",
                got=label,
            )  # fmt: skip
        return self._folders[label]


def _label_column(columns: Sequence[ExportColumn]) -> ExportColumn | None:
    labels = [column for column in columns if column.classes is not None]
    if len(labels) > 1:
        raise ConfigurationError(
            "several columns have class names; choose one of them by --columns (columns=)",
            got=[column.name for column in labels],
        )
    return labels[0] if labels else next((each for each in columns if each.name == "label" and each.is_integer), None)


def _class_folders(label: ExportColumn) -> tuple[str, ...]:
    names = label.classes or ()
    if len(set(names)) < len(names):
        raise SchemaError("two classes have the same name, so labels would be lost", column=label.source)
    return tuple(f"{check_folder_name(name, column=label.source)}/" for name in names)


def _check_metadata(column: ExportColumn) -> None:
    if column.name.endswith(("file_name", "file_names")):
        raise ConfigurationError(
            f"Hugging Face datasets reads {column.name} in metadata.jsonl as the path of a file; rename the column by "
            f"--columns {column.source}=NEWNAME"
        )
    if column.type == "bytes":
        raise ConfigurationError(
            f"metadata.jsonl cannot hold the bytes of column {column.name}; choose columns by --columns (columns=)"
        )


def _plain(column: ExportColumn, value: Any) -> Any:
    """Returns a value of JSON."""
    if column.dtype is None or value is None:
        return value
    plain = value.tolist() if column.is_array else value
    if column.dtype.kind == "f" and not _all_finite(plain):
        raise SchemaError(
            "JSON has no NaN and no infinity; leave the column out by --columns (columns=)", column=column.source
        )
    return plain


def _all_finite(value: Any) -> bool:
    return all(map(_all_finite, value)) if isinstance(value, list) else math.isfinite(value)
