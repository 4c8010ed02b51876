"""Uploads finished shards in the background while the caller produces the next; bounded in number."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from concurrent_loader.storage.errors import StoreClosed
from concurrent_loader.storage.fetch.retry import RetryPolicy
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.stores.objects import Buffer
from concurrent_loader.storage.stores.store import Store

__all__ = ["UploadQueue"]

T = TypeVar("T")


class UploadQueue:
    """Uploads content-addressed objects in parallel, from synchronous code.

    A failed upload is kept, and the next call sends it again, so an error loses nothing.

    Args:
        store: Store to write to; closed with the queue unless ``keep_store``.
        in_flight: Upper bound of concurrent uploads, which also bounds memory; `put` waits beyond it.
        keep_store: Whether the caller owns the store.
        retry: Retry policy of an upload.

    Thread-safety: Usable from one thread.
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
        self._ended: list[Future[None]] = []  # since the last `check`
        self._failed: list[tuple[str, Buffer]] = []
        self._error: BaseException | None = None
        self._closed = False
        self._cancelled = False

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the event loop of the uploads, and waits for it.

        Raises:
            StoreClosed: `cancel` was called.
        """
        if self._cancelled:
            call.close()
            raise StoreClosed("the uploads were cancelled")
        return self._loop.run(call)

    def put(self, key: str, data: Buffer) -> None:
        """Waits for a place and starts an upload; the next `check` or `flush` raises its error."""
        self._wait_for_place()
        self._start(key, data)

    def check(self) -> None:
        """Raises the error of an upload that failed since the last call; the call after that sends it again."""
        if self._ended:  # otherwise nothing has changed, as before nearly every sample
            self._ended.clear()
            self._collect({future for future in self._running if future.done()})
        self._raise_error()
        if self._failed:
            self._restart_failed()

    def flush(self) -> None:
        """Waits until every object is in the store.

        Raises:
            StorageError: An upload failed in spite of retries; another call sends it again.
        """
        self.check()
        self._collect(wait(self._running).done)
        self._raise_error()
        self.run(self._uploader.confirm_replaced())

    def cancel(self) -> None:
        """Cancels from any thread what runs, so that a waiting `flush` or `run` raises an error; `close` follows."""
        self._cancelled = True
        self._loop.call_soon(self._cancel_tasks)

    def _cancel_tasks(self) -> None:
        if not self._closed:  # otherwise `close` cancels them, and must not be cancelled itself
            for task in asyncio.all_tasks():
                task.cancel()

    def close(self) -> None:
        """Cancels running uploads, waits for them to end, and releases connections. Idempotent."""
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
        future = self._loop.submit(self._uploader.put_content_addressed(key, data))
        self._running[future] = (key, data)
        future.add_done_callback(self._ended.append)  # `append` takes no lock that the loop could wait for

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
        for _ in range(len(self._failed)):  # not uploads that fail meanwhile: their errors are raised first
            self._wait_for_place()
            self._start(*self._failed[0])
            del self._failed[0]  # deleted last, so that an interrupted wait loses no upload
