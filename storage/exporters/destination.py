"""Writes the files of an export to a folder or a store, and knows which of them are finished.

A file appears under its name when it is complete: by a rename in a local folder, by one put in a store. The state of an
export is ``.concurrent-loader/export.json``, which is written first and says what is exported, and
``.concurrent-loader/complete.json``, which is written last.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from concurrent_loader.storage.cache.blocking_io import in_thread
from concurrent_loader.storage.errors import AccessDenied, AlreadyExists, FormatError, StorageError, StoreError
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.listing import list_objects
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.stores.backends.local import LocalStore
from concurrent_loader.storage.stores.objects import Buffer
from concurrent_loader.storage.stores.store import Store
from concurrent_loader.storage.unfinished import create_unfinished, sweep_unfinished, sync_folder

__all__ = ["STATE_PREFIX", "Destination", "NewFile"]

T = TypeVar("T")

STATE_PREFIX = ".concurrent-loader/"
_IDENTITY = f"{STATE_PREFIX}export.json"
_COMPLETE = f"{STATE_PREFIX}complete.json"
_MAX_STATE_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Destination:
    """The folder or store that an export is written to. Usable from one event loop.

    Args:
        store: Destination. It is not closed.
        scratch_dir: Local folder for files that are being written; the system's temporary folder by default. A local
            destination does not use it.
        retry: Retry policy.
    """

    def __init__(
        self, store: Store, *, scratch_dir: str | os.PathLike[str] | None = None, retry: RetryPolicy | None = None
    ) -> None:
        self.store = store
        self._scratch_dir = scratch_dir
        self._engine = FetchEngine(store, retry=retry)
        self._uploader = Uploader(store=store, retry=RetryPolicy.of(retry))
        self._swept: set[Path] = set()

    # -- state ---------------------------------------------------------------------------------------------------------

    async def begin(self, identity: Mapping[str, Any], names: Container[str]) -> tuple[dict[str, int], bool]:
        """Starts an export, or continues the same unfinished one.

        Args:
            identity: What is exported and how, as JSON values.
            names: Names of the files that the export writes.

        Returns:
            Sizes of the finished files by name, and whether the export is complete.

        Raises:
            AlreadyExists: The destination holds something else.
        """
        states = {_IDENTITY, _COMPLETE}
        foreign: list[str] = []

        def is_wanted(key: str) -> bool:
            if key in states or key in names:
                return True
            if not foreign:
                foreign.append(key)
            return False

        listing = await list_objects(self._engine, is_wanted)
        finished = dict(zip(listing.keys.tolist(), listing.sizes.tolist(), strict=True))
        if _IDENTITY in finished:
            self._check_same(await self._identity(), identity)
            return finished, _COMPLETE in finished
        if finished or foreign:
            key = min([*foreign, *finished])
            raise AlreadyExists("the destination is not empty; export to a new folder", url=self.store.url, key=key)
        await self._uploader.put_once(_IDENTITY, msgspec.json.encode(identity, order="deterministic"))
        return {}, False

    async def complete(self, summary: Mapping[str, Any], temporary: Sequence[str]) -> None:
        """Marks the export as complete, and deletes temporary files."""
        await self.put(_COMPLETE, msgspec.json.encode(summary, order="deterministic"))
        await map_concurrently(self._delete, temporary)

    async def count(self, is_counted: Callable[[str], bool]) -> int:
        """Returns the number of objects whose name is counted, in little memory."""
        number = 0
        last = b""

        def note(key: str) -> bool:
            nonlocal number, last
            place = key.encode()
            if place <= last:  # names ascend, so the listing has started again after an error
                number = 0
            last = place
            number += is_counted(key)
            return False

        await list_objects(self._engine, note)
        return number

    async def _delete(self, key: str) -> None:
        await self._engine.call_with_retries(lambda: self.store.delete(key), key)

    async def _size(self, key: str) -> int:
        return (await self._engine.call_with_retries(lambda: self.store.head(key), key)).size

    async def _identity(self) -> Any:
        size = await self._size(_IDENTITY)
        if size > _MAX_STATE_BYTES:
            raise FormatError("the state of the export is too large", url=self.store.url, key=_IDENTITY, got=size)
        result = await self._engine.fetch(_IDENTITY, 0, size, object_size=size)
        try:
            return msgspec.json.decode(result.data)
        except msgspec.DecodeError as error:
            raise FormatError(
                "the state of the export is not JSON; export to a new folder", url=self.store.url, key=_IDENTITY
            ) from error

    def _check_same(self, state: Any, identity: Mapping[str, Any]) -> None:
        if state == identity:
            return
        known = state if isinstance(state, dict) else {}
        name = next(name for name in (*identity, *known) if known.get(name) != identity.get(name))
        raise AlreadyExists(
            f"the destination holds another export, with another {name}; repeat the command of that export to continue "
            "it, or export to a new folder",
            url=self.store.url, expected=identity.get(name), got=known.get(name),
        )  # fmt: skip

    # -- files ---------------------------------------------------------------------------------------------------------

    async def put(self, key: str, data: bytes) -> None:
        """Writes a small file under its name."""
        await self._uploader.put(key, data)

    async def create(self, key: str) -> NewFile:
        """Creates a file that has no name yet; close it in every case."""
        if isinstance(self.store, LocalStore):
            path = self.store.path_of(key)
            is_first = path.parent not in self._swept
            self._swept.add(path.parent)
            return await self.on_drive(key, lambda: NewFile.beside(path, sweep=is_first), NewFile.close)
        return await self.on_drive(key, lambda: NewFile.unnamed(self._scratch_dir), NewFile.close)

    async def publish(self, key: str, file: NewFile) -> int:
        """Makes a complete file visible under its name; returns its size."""
        if isinstance(self.store, LocalStore):
            path = self.store.path_of(key)
            return await self.on_drive(key, lambda: file.rename(path))
        await self.on_drive(key, file.file.flush)
        with file.mapped() as data:
            await self._uploader.put(key, data)
            return len(data)

    async def join(self, key: str, parts: Sequence[str]) -> None:
        """Writes a file that consists of others, which stay."""
        file = await self.create(key)
        try:
            end = 0
            for part in parts:
                end += await self._append(file, end, part)
            await self.publish(key, file)
        finally:
            file.close()

    async def _append(self, file: NewFile, start: int, part: str) -> int:
        async def write(position: int, piece: memoryview) -> None:
            await self.on_drive(part, lambda: file.write_at(start + position, piece))

        if size := await self._size(part):
            await self._engine.fetch_into(part, 0, size, write, object_size=size)
        return size

    async def on_drive(
        self, key: str, call: Callable[[], T], dispose: Callable[[T], object] = lambda result: None
    ) -> T:
        """Calls a function that writes a file, on a thread; see `in_thread`.

        Raises:
            StoreError: The local drive failed, for example because it is full.
        """
        try:
            return await in_thread(call, dispose)
        except OSError as error:
            raise self._drive_error(key, error) from error

    def _drive_error(self, key: str, error: OSError) -> StorageError:
        reason = error.strerror or str(error)
        if isinstance(error, PermissionError):
            return AccessDenied("the export cannot write here", url=self.store.url, key=key, got=reason)
        if isinstance(self.store, LocalStore):
            where = "the drive of the destination"
        else:
            where = f"the drive of {self._scratch_dir or tempfile.gettempdir()}"
        if error.errno in _FULL:
            return StoreError(
                f"{where} is full; free some space and repeat the command, which keeps the finished files",
                url=self.store.url, key=key, got=reason,
            )  # fmt: skip
        return StoreError(f"{where} failed", url=self.store.url, key=key, got=reason)


class NewFile:
    """A file that becomes visible when it is complete. Methods block.

    Attributes:
        file: File to write to; seekable.
    """

    def __init__(self, file: BinaryIO, path: Path | None) -> None:
        self.file = file
        self._path = path

    @classmethod
    def beside(cls, path: Path, *, sweep: bool) -> NewFile:
        """Creates a file in the folder of its later name.

        Args:
            path: Later name.
            sweep: Whether to delete files in the folder that killed processes left behind.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if sweep:
            sweep_unfinished(path.parent)
        fd, unfinished = create_unfinished(path.parent)
        return cls(os.fdopen(fd, "wb", buffering=_BUFFER_BYTES), unfinished)

    @classmethod
    def unnamed(cls, folder: str | os.PathLike[str] | None) -> NewFile:
        """Creates a file without a name, which the system deletes even if the process is killed."""
        return cls(cast("BinaryIO", tempfile.TemporaryFile(dir=folder, buffering=_BUFFER_BYTES)), None)

    def write_at(self, position: int, data: memoryview) -> None:
        """Writes at a position."""
        self.file.seek(position)
        self.file.write(data)

    def rename(self, path: Path) -> int:
        """Gives the file its name, after its bytes are on the drive; returns its size."""
        assert self._path is not None
        self.file.flush()
        os.fsync(self.file.fileno())
        size = os.fstat(self.file.fileno()).st_size
        self._path.replace(path)
        self._path = None
        sync_folder(path.parent)
        return size

    @contextlib.contextmanager
    def mapped(self) -> Iterator[Buffer]:
        """Maps the file, which must be flushed, into memory, so that an upload reads it piece by piece."""
        if not os.fstat(self.file.fileno()).st_size:
            yield b""
            return
        mapping = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            with memoryview(mapping) as view:
                yield view
        finally:
            with contextlib.suppress(BufferError):  # a cancelled upload still has a part: the last reference closes it
                mapping.close()

    def close(self) -> None:
        """Closes the file, and deletes it if it has no name yet. Idempotent."""
        path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full drive: the rest of the buffer belongs to a file that is deleted
            self.file.close()
