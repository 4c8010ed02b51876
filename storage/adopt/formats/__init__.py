"""The foreign formats that are read in place, one module each."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from concurrent_loader.storage.adopt.protocol import ForeignFormat
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["FORMATS", "find_format"]

_HERE = "concurrent_loader.storage.adopt.formats"

# Name on the command line: module, class.
FORMATS: dict[str, tuple[str, str]] = {
    "litdata": ("litdata", "LitDataFormat"),
    "mds": ("mds", "MdsFormat"),
    "parquet": ("parquet", "Parquet"),
    "tfrecord": ("tfrecord", "TfRecordFormat"),
    "webdataset": ("webdataset", "WebDataset"),
}


def find_format(name: str) -> ForeignFormat:
    """Returns a format by its name.

    Raises:
        ConfigurationError: There is no such format.
    """
    if name not in FORMATS:
        raise ConfigurationError(
            "no such format can be adopted; `concurrent-loader ingest` converts others",
            expected=sorted(FORMATS),
            got=name,
        )
    module, cls = FORMATS[name]
    return cast("ForeignFormat", getattr(import_module(f"{_HERE}.{module}"), cls)())
