"""Adapts synchronous sources of samples to the interface of importers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.importers.protocol import (
    ImportedSample,
    Importer,
    ImportProblem,
    ImportScan,
    SampleSource,
)
from concurrent_loader.storage.importers.threaded_importer import Items, ThreadedImporter
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["as_importer", "num_value_bytes"]


def as_importer(source: Importer | SampleSource) -> Importer:
    """Returns an importer unchanged, and adapts a synchronous source.

    Raises:
        ConfigurationError: The object is neither.
    """
    if all(callable(getattr(source, method, None)) for method in ("scan", "read", "close")):
        return cast("Importer", source)
    if isinstance(getattr(source, "columns", None), Mapping) and hasattr(source, "__iter__"):
        return _SyncImporter(cast("SampleSource", source))
    raise ConfigurationError(
        "importer must be an importer such as ImageFolder, or an object with columns (a dict of names and types) and "
        "an iterator of dicts", got=type(source).__name__,
    )  # fmt: skip


class _SyncImporter(ThreadedImporter):
    """Iterates over a synchronous source on a thread."""

    def __init__(self, source: SampleSource) -> None:
        super().__init__()
        self._source = source

    @property
    def url(self) -> str:
        kind = type(self._source)
        return str(getattr(self._source, "url", None) or f"python:{kind.__module__}.{kind.__qualname__}")

    def _scan(self, onto: Manifest | None) -> ImportScan:
        del onto
        num_samples = getattr(self._source, "num_samples", None)
        return ImportScan(
            columns=dict(self._source.columns),
            num_samples=num_samples,
            num_bytes=0,
            metadata=dict(getattr(self._source, "metadata", None) or {}),
            identity=getattr(self._source, "identity", None),
        )

    def _read(self) -> Items:
        iterator: Iterator[Any] = iter(self._source)
        for number, item in enumerate(iterator):
            if isinstance(item, ImportedSample | ImportProblem):
                yield item
            elif isinstance(item, Mapping):
                values = dict(item)
                yield ImportedSample(name=f"sample {number}", values=values, num_bytes=num_value_bytes(values))
            else:
                reason = f"a sample must be a dict of column names to values, not {type(item).__name__}"
                yield ImportProblem(name=f"sample {number}", reason=reason)


def num_value_bytes(values: Mapping[str, object]) -> int:
    """Returns the approximate size of a sample's values in bytes."""
    return sum(_num_bytes(value) for value in values.values())


def _num_bytes(value: object) -> int:
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    size = getattr(value, "nbytes", None)  # memoryview, array, tensor
    return size if isinstance(size, int) else 8
