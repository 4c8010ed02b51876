"""The common part of importers that read files of one format, which lie in a folder or in any store."""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from concurrent_loader.storage.errors import ConfigurationError, FormatError, StorageError
from concurrent_loader.storage.importers.column_types import choose_columns
from concurrent_loader.storage.importers.source_files import SourceFile, SourceFiles
from concurrent_loader.storage.importers.split_files import split_by_bytes
from concurrent_loader.storage.importers.threaded_importer import ThreadedImporter
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["FileImporter"]


class FileImporter(ThreadedImporter):
    """An importer of files.

    Args:
        source: URL or path of a file, or of a folder with files.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of columns to leave out.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Attributes:
        SUFFIXES: Suffixes of the files.
        WHAT: Name of the format for errors, with its article.
        HIDDEN: Whether hidden files belong to a source.
        SPLITS: Whether each file can be read without the others, so that several processes may import a source.
    """

    SUFFIXES: ClassVar[tuple[str, ...]] = ()
    WHAT: ClassVar[str] = ""
    HIDDEN: ClassVar[bool] = False
    SPLITS: ClassVar[bool] = False

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        columns: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._types = {name: Column(name, type_).type for name, type_ in dict(columns or {}).items()}
        if isinstance(drop, str):
            raise ConfigurationError("drop must be a list of names", got=drop)
        self._drop = tuple(drop)
        self._columns: dict[str, Column] = {}
        self._files = SourceFiles(
            source, suffixes=self.SUFFIXES, what=self.WHAT, hidden=self.HIDDEN, client=client,
            storage_options=storage_options,
        )  # fmt: skip

    @property
    def url(self) -> str:
        """URL of the file or the folder."""
        return self._files.url

    def split(self, max_bytes: int) -> list[Self]:
        """Divides a scanned source into importers of consecutive files, which can be pickled and need no scan.

        Args:
            max_bytes: Upper bound of the files of an importer, in bytes; a single file may exceed it.

        Returns:
            Importers; an empty list if the format is read as a whole.
        """
        if not self.SPLITS:
            return []
        parts = []
        for files in split_by_bytes(self._files.files, max_bytes):
            part = copy.copy(self)
            part._files = self._files.only(files)
            parts.append(part)
        return parts

    async def _close_store(self) -> None:
        await self._files.close()

    def _choose_columns(self, derived: Mapping[str, str], onto: Manifest | None) -> dict[str, str]:
        """Returns the columns of the dataset, and keeps them for reading."""
        chosen = choose_columns(derived, columns=self._types, drop=self._drop, onto=onto, url=self.url)
        self._columns = {name: Column(name, type_) for name, type_ in chosen.items()}
        return chosen

    def _derived(self) -> frozenset[str]:
        """Returns the columns whose type the user has not chosen."""
        return frozenset(self._columns) - frozenset(self._types)

    def _identity(self, name: str, *options: object) -> str | None:
        return self._files.identity(name, self._types, self._drop, *options)

    @contextmanager
    def _faults_of(self, file: SourceFile, *faults: type[Exception]) -> Generator[None, None, None]:
        """Turns a library's errors about a damaged file into `FormatError`."""
        try:
            yield
        except StorageError as error:
            raise error.locate(url=self._files.store.url, key=file.key) from error.__cause__
        except faults as error:
            raise FormatError(
                f"the file cannot be read as {self.WHAT}: {error or type(error).__name__}; it may be damaged",
                url=self._files.store.url, key=file.key,
            ) from error  # fmt: skip
