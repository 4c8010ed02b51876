"""The serializers of LitData: how each stores a leaf, by its name in the index's ``data_format``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from concurrent_loader.storage.adopt.formats.foreign_values import IMPORT_INSTEAD
from concurrent_loader.storage.adopt.formats.litdata_json import parse_nested
from concurrent_loader.storage.adopt.formats.source_values import SourceValue, ValueKind
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.foreign_headers import LITDATA_NUMPY_DTYPES, LITDATA_TORCH_DTYPES

__all__ = ["source_value"]

_FLAT_DTYPES: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {"no_header_tensor": LITDATA_TORCH_DTYPES, "no_header_numpy": LITDATA_NUMPY_DTYPES}
)
_FILES = ("bytes", "jpeg", "image", "tifffile", "tiff", "file", "video", "audio", "nifti", "mesh", "pdf", "png")
_VALUES: Mapping[str, SourceValue] = MappingProxyType(
    {
        value.name: value
        for value in (
            *(SourceValue(name, ValueKind.BYTES) for name in _FILES),
            *(SourceValue(name, ValueKind.TEXT) for name in ("str", "text")),
            SourceValue("int", ValueKind.STORED, type="int64"),
            SourceValue("float", ValueKind.STORED, type="float64"),
            SourceValue("bool", ValueKind.STORED, type="bool"),
            SourceValue("tensor", ValueKind.ARRAY, header="litdata/tensor"),
            SourceValue("numpy", ValueKind.ARRAY, header="litdata/numpy"),
            SourceValue("pil", ValueKind.IMAGE, header="pil"),
            SourceValue("jpeg_array", ValueKind.LIST),
            SourceValue("json", ValueKind.PARSED, parse=parse_nested),
        )
    }
)


def source_value(data_format: str, *, key: str, column: str) -> SourceValue:
    """Returns how a serializer stores values.

    Args:
        data_format: Name of the serializer, perhaps with parameters: ``"jpeg"``, ``"no_header_tensor:17"``.
        key: Key of the index, for errors.
        column: Name of the column, for errors.

    Raises:
        FormatError: The serializer uses pickle, is unknown, or has an invalid parameter.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.litdata_values import source_value
        >>> source_value("no_header_tensor:17", key="index.json", column="tokens").type
        'int64'
    """
    name, _, parameter = data_format.partition(":")
    if name in ("pickle", "graph"):
        raise FormatError(
            "a column is pickled, and loading a pickle runs its code: optimize the dataset again with tensors, numbers "
            f"or bytes, or {IMPORT_INSTEAD}", key=key, column=column, got=data_format[:80],
        )  # fmt: skip
    if name in _FLAT_DTYPES:
        dtypes = _FLAT_DTYPES[name]
        dtype = (
            dtypes.get(int(parameter)) if parameter.isascii() and parameter.isdigit() and len(parameter) < 4 else None
        )
        if dtype is None:
            raise FormatError(
                f"the dtype of an array has no column type: {IMPORT_INSTEAD}", key=key, column=column,
                expected=sorted(dtypes), got=data_format[:80],
            )  # fmt: skip
        return SourceValue(data_format, ValueKind.FLAT, type=dtype)
    value = _VALUES.get(name)
    if value is None:
        raise FormatError(
            f"a column has an unknown serializer: {IMPORT_INSTEAD}", key=key, column=column,
            expected="|".join((*_VALUES, *_FLAT_DTYPES)), got=data_format[:80],
        )  # fmt: skip
    return value
