"""Imports the samples of any Python generator of dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from concurrent_loader.storage.errors import ConfigurationError, NotFound
from concurrent_loader.storage.importers.column_types import (
    MAX_SAMPLED,
    MAX_SAMPLED_BYTES,
    choose_columns,
    derive_columns,
)
from concurrent_loader.storage.importers.column_values import to_json
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.sample_source import num_value_bytes
from concurrent_loader.storage.importers.threaded_importer import Items, ThreadedImporter
from concurrent_loader.storage.importers.user_function import find_function
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["PythonGenerator"]


class PythonGenerator(ThreadedImporter):
    """Imports what a function yields: a dict per sample.

    Types of columns are derived from the first 200 samples. Nothing identifies the source, so that ``append`` adds it
    again, unless the commit has a ``token``.

    Args:
        function: Function that returns an iterable of dicts; or its name, ``"module:function"``. A name is looked up in
            the current folder first.
        arg: Arguments of the function as texts, ``"name=value"``.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of columns to leave out.
        client: Ignored: the function opens its own source.
        storage_options: Ignored.

    Example:
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import PythonGenerator
        >>> def squares(count):
        ...     for number in range(int(count)):
        ...         yield {"number": number, "square": number**2}
        >>> ingest(PythonGenerator(squares, arg=["count=3"]), "squares").manifest.schema
        {'number': 'int64', 'square': 'int64'}
    """

    def __init__(
        self,
        function: str | Callable[..., Iterable[Mapping[str, object]]],
        *,
        arg: Sequence[str] = (),
        columns: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        del client, storage_options
        super().__init__()
        self._types = {name: Column(name, type_).type for name, type_ in dict(columns or {}).items()}
        self._drop = tuple(drop)
        self._arguments = _parse_arguments(arg)
        self._name = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
        self._function = find_function(function) if isinstance(function, str) else function
        self._json: set[str] = set()
        self._items: Iterator[Any] = iter(())

    @property
    def url(self) -> str:
        """Name of the function, as ``python:module:function``."""
        return f"python:{self._name}"

    def _scan(self, onto: Manifest | None) -> ImportScan:
        samples = iter(self._function(**self._arguments))
        first: list[Any] = []
        num_bytes = 0
        for sample in samples:
            first.append(sample)
            num_bytes += num_value_bytes(sample) if isinstance(sample, Mapping) else 0
            if len(first) >= MAX_SAMPLED or num_bytes >= MAX_SAMPLED_BYTES:
                break
        dicts = [sample for sample in first if isinstance(sample, Mapping)]
        if not dicts:
            kind = f", but {type(first[0]).__name__}" if first else ""
            raise NotFound(f"nothing to import: the function yields no dicts{kind}", url=self.url)
        self._items = chain(first, samples)
        columns = choose_columns(
            derive_columns(_undecided(dicts, {*self._types, *self._drop})), columns=self._types, drop=self._drop,
            onto=onto, url=self.url,
        )  # fmt: skip
        self._json = {name for name, type_ in columns.items() if type_ == "json"}
        return ImportScan(
            columns=columns,
            num_samples=None,
            num_bytes=0,
            derived=frozenset(columns) - frozenset(self._types),
        )

    def _read(self) -> Items:
        for number, sample in enumerate(self._items):
            name = f"sample {number}"
            if not isinstance(sample, Mapping):
                reason = f"a sample must be a dict of column names to values, not {type(sample).__name__}"
                yield ImportProblem(name=name, reason=reason)
                continue
            values = {
                key: to_json(value) if key in self._json else value
                for key, value in sample.items()
                if key not in self._drop
            }
            yield ImportedSample(name=name, values=values, num_bytes=num_value_bytes(values))

    def _close(self) -> None:
        self._items = iter(())


def _undecided(samples: Sequence[Mapping[str, object]], decided: set[str]) -> list[dict[str, object]]:
    """Returns the samples with None for fields whose type is given, and for those that are left out."""
    return [{name: None if name in decided else value for name, value in sample.items()} for sample in samples]


def _parse_arguments(texts: Sequence[str]) -> dict[str, str]:
    arguments: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.isidentifier():
            raise ConfigurationError("an argument must have the form name=value", got=text)
        arguments[name] = value
    return arguments
