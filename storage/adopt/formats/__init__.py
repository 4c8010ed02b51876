"""The foreign formats that are read in place, one module each."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from concurrent_loader.storage.adopt.protocol import ForeignFormat
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["FORMATS", "HEADERS_ONLY", "find_format"]

_HERE = "concurrent_loader.storage.adopt.formats"

# Name on the command line: module, class.
FORMATS: dict[str, tuple[str, str]] = {
    "litdata": ("litdata", "LitDataFormat"),
    "mds": ("mds", "MdsFormat"),
    "parquet": ("parquet", "Parquet"),
    "tfrecord": ("tfrecord", "TfRecordFormat"),
    "webdataset": ("webdataset", "WebDataset"),
}

HEADERS_ONLY = frozenset({"litdata", "mds", "webdataset"})
"""Formats whose walk finds payload values without reading them."""


def find_format(name: str, *, block_size: int | None = None) -> ForeignFormat:
    """Returns a format by its name.

    Args:
        name: Name on the command line.
        block_size: Number of tokens per sample; for ``"litdata"`` only.

    Raises:
        ConfigurationError: There is no such format, or it has no such option.
    """
    if name not in FORMATS:
        raise ConfigurationError(
            "no such format can be adopted; `concurrent-loader ingest` converts others",
            expected=sorted(FORMATS),
            got=name,
        )
    module, cls = FORMATS[name]
    options = {}
    if block_size is not None:
        if name != "litdata" or block_size < 1:
            raise ConfigurationError("block_size is a number of tokens of LitData, at least 1", got=(name, block_size))
        options["block_size"] = block_size
    return cast("ForeignFormat", getattr(import_module(f"{_HERE}.{module}"), cls)(**options))
