"""Finished shards on their way to the store while the caller produces the next: bounded in number."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from storage.fetch.retry import RetryPolicy
from storage.loop_thread import LoopThread
from storage.shards.uploading import Uploader
from storage.stores.protocol import Buffer, Store

__all__ = ["UploadQueue"]

T = TypeVar("T")


class UploadQueue:
    """Uploads content-addressed objects in parallel, from synchronous code.

    What could not be uploaded is kept and sent again by the next call, so an error loses nothing.

    Args:
        store: Where to; closed with the queue unless ``keep_store``.
        in_flight: Uploads at once; `put` waits while so many are under way. This bounds memory too.
        keep_store: The store is the caller's.
        retry: When to insist on an upload.

    Thread-safety: One thread.
    """

    def __init__(
        self, store: Store, *, in_flight: int, keep_store: bool = False, retry: RetryPolicy | None = None
    ) -> None:
        self.store = store
        self._uploader = Uploader(store=store, retry=RetryPolicy.of(retry))
        self._in_flight = in_flight
        self._keep_store = keep_store
        self._loop = LoopThread("storage-upload")
        self._running: dict[Future[None], tuple[str, Buffer]] = {}
        self._failed: list[tuple[str, Buffer]] = []
        self._error: BaseException | None = None
        self._closed = False

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs any call on the loop that the uploads run on, and waits for it."""
        return self._loop.run(call)

    def put(self, key: str, data: Buffer) -> None:
        """Starts an upload, after waiting for a place; an error shows at the next `check` or `flush`."""
        self._wait_for_place()
        self._start(key, data)

    def check(self) -> None:
        """Raises what an upload has ended with since the last call; its bytes are kept and sent again after that."""
        if self._running:
            self._collect({future for future in self._running if future.done()})
        self._raise_error()
        self._restart_failed()

    def flush(self) -> None:
        """Waits until everything is in the store.

        Raises:
            StorageError: Something is not, in spite of retries. It is kept: calling again sends it again.
        """
        self.check()
        self._collect(wait(self._running).done)
        self._raise_error()

    def close(self) -> None:
        """Cancels what is under way, waits for it to unwind, and releases connections. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._running.clear()
        try:
            self._loop.run(self._unwind())
        finally:
            self._loop.close()

    async def _unwind(self) -> None:
        uploads = asyncio.all_tasks() - {asyncio.current_task()}
        for upload in uploads:
            upload.cancel()
        await asyncio.gather(*uploads, return_exceptions=True)
        if not self._keep_store:
            await self.store.close()

    def _wait_for_place(self) -> None:
        while len(self._running) >= self._in_flight:
            self._collect(wait(self._running, return_when=FIRST_COMPLETED).done)

    def _start(self, key: str, data: Buffer) -> None:
        self._running[self._loop.submit(self._uploader.put_content_addressed(key, data))] = (key, data)

    def _collect(self, done: set[Future[None]]) -> None:
        for future in done:
            upload = self._running.pop(future)
            error = future.exception()
            if error is not None:
                self._failed.append(upload)
                self._error = self._error or error

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _restart_failed(self) -> None:
        for _ in range(len(self._failed)):  # not those that fail meanwhile: their errors are raised first
            self._wait_for_place()
            self._start(*self._failed[0])
            del self._failed[0]  # only now: an interrupted wait forgets none
