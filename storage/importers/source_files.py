"""Finds the files of a source at a URL, and opens them for synchronous libraries."""

from __future__ import annotations

import copy
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import xxhash

from concurrent_loader.storage.errors import ConfigurationError, NotFound, ObjectChanged
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.importers.loop_calls import LoopCalls
from concurrent_loader.storage.importers.store_file import StoreFile
from concurrent_loader.storage.printable import printable
from concurrent_loader.storage.scan_objects import list_metas
from concurrent_loader.storage.stores.backends.local import LocalStore
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["SourceFile", "SourceFiles", "is_hidden", "version_of"]

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source.

    Attributes:
        key: Key relative to the URL of the source's folder.
        size: Size in bytes.
        etag: ETag, or None if the store has none.
        version: ETag or time of the last write; None if the store has neither.
    """

    key: str
    size: int
    etag: str | None
    version: str | None

    @classmethod
    def of(cls, meta: ObjectMeta) -> SourceFile:
        """Returns the file of an object."""
        return cls(meta.key, meta.size, meta.etag, version_of(meta))


class SourceFiles:
    """The files of a source: one file, or all files with certain suffixes in a folder and below.

    Args:
        source: URL or path of a file or a folder.
        suffixes: Suffixes of the names, in lower case with a dot. An empty tuple accepts all files.
        what: Name of the format for errors.
        hidden: Whether hidden files, whose names begin with a dot, belong to the source.
        client: Client library of the store.
        storage_options: Options of the store.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        suffixes: Sequence[str] = (),
        what: str,
        hidden: bool = False,
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        root, self._key = _split(os.fspath(source), suffixes)
        self.store: Store = open_store(root, client=client, **dict(storage_options or {}))
        self.url = f"{self.store.url}/{self._key}" if self._key else self.store.url
        self.engine = self._new_engine()
        self.files: list[SourceFile] = []
        self.num_ignored = 0
        self._suffixes = tuple(suffixes)
        self._what = what
        self._hidden = hidden

    def only(self, files: list[SourceFile]) -> SourceFiles:
        """Returns the same source with some of its files."""
        other = copy.copy(self)
        other.files = files
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "engine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.engine = self._new_engine()

    def __deepcopy__(self, memo: dict[int, Any]) -> SourceFiles:
        """Returns the same files with a store of its own."""
        other = copy.copy(self)
        other.store = copy.deepcopy(self.store, memo)
        other.engine = other._new_engine()
        return other

    def _new_engine(self) -> FetchEngine:
        return FetchEngine(self.store, bytes_in_flight="64MiB")

    @property
    def num_bytes(self) -> int:
        """Size of the files in bytes."""
        return sum(file.size for file in self.files)

    def local_path(self, file: SourceFile) -> Path | None:
        """Returns the path of a file on the local drive, or None if the source is remote."""
        return self.store.path_of(file.key) if isinstance(self.store, LocalStore) else None

    def find(self, calls: LoopCalls) -> None:
        """Finds the files, sorted by key.

        Raises:
            NotFound: There is no file of this format.
        """
        calls.run(self.find_here())

    def identity(self, name: str, *options: object) -> str | None:
        """Returns a digest of names, sizes and versions of the files and of import options.

        Returns None if a file has no version, because a change could go unnoticed.
        """
        if any(file.version is None for file in self.files):
            return None
        hashed = xxhash.xxh3_128(repr((self.url, *options)).encode())
        for file in self.files:
            hashed.update(repr((file.key, file.size, file.version)).encode())
        return f"{name}:{hashed.hexdigest()}"

    def open(self, file: SourceFile, calls: LoopCalls) -> BinaryIO:
        """Opens a file, buffered and seekable.

        Raises:
            ObjectChanged: The file changed after it was listed.
        """
        path = self.local_path(file)
        if path is None:
            raw = StoreFile(self.engine, calls, file.key, size=file.size, etag=file.etag)
            return cast("BinaryIO", io.BufferedReader(raw, _BUFFER_BYTES))
        self.check_unchanged(file, calls)
        return path.open("rb")

    def check_unchanged(self, file: SourceFile, calls: LoopCalls) -> None:
        """Compares a file with its entry in the listing.

        Raises:
            ObjectChanged: The file changed after it was listed.
        """
        now = SourceFile.of(calls.run(self.engine.call_with_retries(lambda: self.store.head(file.key), file.key)))
        if now != file:
            raise ObjectChanged(
                "the file changed after it was listed: run the import again", url=self.store.url, key=file.key
            )

    async def close(self) -> None:
        """Closes the store."""
        await self.store.close()

    async def find_here(self) -> None:
        """Finds the files, like `find`, on the event loop."""
        if self._key is not None:
            key = self._key
            self.files = [SourceFile.of(await self.engine.call_with_retries(lambda: self.store.head(key), key))]
            return
        found = [SourceFile.of(meta) for meta in await list_metas(self.engine, "")]
        self.files = [file for file in found if self._matches(file.key)]
        self.num_ignored = len(found) - len(self.files)
        if not self.files:
            raise self._nothing_found([file.key for file in found])

    def _matches(self, key: str) -> bool:
        is_seen = self._hidden or not is_hidden(key)
        return is_seen and (not self._suffixes or key.lower().endswith(self._suffixes))

    def _nothing_found(self, keys: Sequence[str]) -> NotFound:
        if not keys:
            return NotFound("nothing to import: the folder is empty, or does not exist", url=self.url)
        endings = Counter(Path(key).suffix for key in keys)
        seen = ", ".join(printable(name or "none") for name, _ in endings.most_common(5))
        return NotFound(
            f"nothing to import: none of {len(keys)} files is {self._what} (by its ending); their endings: {seen}",
            url=self.url, expected=", ".join(self._suffixes),
        )  # fmt: skip


def is_hidden(key: str) -> bool:
    """Returns whether a segment of a key begins with a dot."""
    if not key.startswith(".") and "/." not in key:
        return False
    return any(segment.startswith(".") and segment not in (".", "..") for segment in key.split("/"))


def version_of(meta: ObjectMeta) -> str | None:
    """Returns the ETag or the time of an object, which change with its bytes."""
    if meta.etag is not None:
        return meta.etag
    return None if meta.last_modified is None else meta.last_modified.isoformat()


def _split(source: str, suffixes: Sequence[str]) -> tuple[str, str | None]:
    """Returns the URL of the folder, and the key of the file if the source is one file."""
    scheme = source.partition("://")[0].lower() if "://" in source else "file"
    if scheme == "file":
        path = Path(source.removeprefix("file://")).expanduser()
        if path.is_file():
            return str(path.absolute().parent), path.name
        if path.is_dir():
            return str(path), None
        raise NotFound("nothing to import: there is no such file or folder", url=source)
    folder, _, name = source.rstrip("/").rpartition("/")
    if not name.lower().endswith(tuple(suffixes)) or not suffixes:
        return source, None
    if folder.endswith((":/", ":")):
        raise ConfigurationError("a file must be in a bucket: SCHEME://BUCKET/FILE", got=source)
    return folder, name
