"""Lists the formats that `concurrent_loader.storage.exporters.export` writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.exporters.image_folder import ImageFolders
from concurrent_loader.storage.exporters.mds import Mds
from concurrent_loader.storage.exporters.parquet import Parquet
from concurrent_loader.storage.exporters.protocol import ExportFormat, ExportSpec
from concurrent_loader.storage.exporters.webdataset import WebDataset

__all__ = ["FORMAT_NAMES", "FormatName", "find_export_format"]

FormatName = Literal["webdataset", "parquet", "image-folder", "mds"]

_FORMATS: dict[str, Callable[[ExportSpec], ExportFormat]] = {
    "webdataset": WebDataset,
    "parquet": Parquet,
    "image-folder": ImageFolders,
    "mds": Mds,
}
FORMAT_NAMES: tuple[str, ...] = get_args(FormatName)


def find_export_format(name: str) -> Callable[[ExportSpec], ExportFormat]:
    """Returns the function that creates a format.

    Raises:
        ConfigurationError: There is no such format.
    """
    if name not in _FORMATS:
        raise ConfigurationError(f"format must be one of {', '.join(FORMAT_NAMES)}", got=name)
    return _FORMATS[name]
