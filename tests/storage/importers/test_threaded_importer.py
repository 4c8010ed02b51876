from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

import pytest

from concurrent_loader.storage.errors import ObjectChanged, StoreClosed
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.importers import ImportedSample, ImportScan
from concurrent_loader.storage.importers.loop_calls import LoopCalls
from concurrent_loader.storage.importers.store_file import StoreFile
from concurrent_loader.storage.importers.threaded_importer import Items, ThreadedImporter
from concurrent_loader.storage.stores import MemoryStore

pytestmark = pytest.mark.usefixtures("no_leaks")


class Hanging(ThreadedImporter):
    """Yields some samples, and then waits for a store that never answers."""

    url = "test:hanging"

    def __init__(self) -> None:
        super().__init__()
        self.is_waiting = threading.Event()
        self.threads: set[int] = set()
        self.closed = 0

    def _scan(self, onto: object) -> ImportScan:
        self.threads.add(threading.get_ident())
        return ImportScan(columns={"x": "int64"}, num_samples=None, num_bytes=0)

    def _read(self) -> Items:
        for number in range(64):
            self.threads.add(threading.get_ident())
            yield ImportedSample(name="x", values={"x": number}, num_bytes=8)
        self.is_waiting.set()
        self.calls.run(asyncio.Event().wait())

    def _close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed += 1


async def test_a_cancellation_ends_a_wait_for_the_store() -> None:
    importer = Hanging()
    await importer.scan()
    items = importer.read()
    assert [(await anext(items)).values["x"] for _ in range(64)] == list(range(64))  # type: ignore[union-attr]
    waiting = asyncio.ensure_future(anext(items))
    assert await asyncio.to_thread(importer.is_waiting.wait, 30)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await items.aclose()
    for _ in range(2):
        await importer.close()
    assert importer.closed == 1
    assert len(importer.threads) == 1


async def test_an_importer_that_was_not_used_closes() -> None:
    await Hanging().close()


async def test_calls_after_the_stop_are_refused() -> None:
    calls = LoopCalls(asyncio.get_running_loop())
    calls.stop()
    with pytest.raises(StoreClosed):
        calls.submit(asyncio.sleep(0))


class TestStoreFile:
    async def opened(self, data: bytes) -> tuple[MemoryStore, StoreFile]:
        store = MemoryStore(f"memory://file-{uuid4()}")
        meta = await store.put("x", data)
        calls = LoopCalls(asyncio.get_running_loop())
        return store, StoreFile(FetchEngine(store), calls, "x", size=len(data), etag=meta.etag)

    async def test_reads_and_seeks_like_a_file(self) -> None:
        data = bytes(range(256)) * (40 << 10)  # 10 MiB: several pieces
        _, file = await self.opened(data)

        def read() -> list[Any]:
            whole = file.read()
            file.seek(-10, 2)
            end = file.read(100)
            file.seek(3 << 20)
            file.seek(5, 1)
            return [whole, end, file.read(7), file.tell(), file.seek(1 << 40), file.read(5), file.read(0)]

        at = (3 << 20) + 5
        expected = [data, data[-10:], data[at : at + 7], at + 7, 1 << 40, b"", b""]
        assert await asyncio.to_thread(read) == expected
        with pytest.raises(ValueError, match="negative"):
            file.seek(-1)
        file.close()

    async def test_a_replaced_object_is_an_error(self) -> None:
        store, file = await self.opened(bytes(5 << 20))
        assert await asyncio.to_thread(file.read, 10) == bytes(10)
        await store.put("x", bytes([1]) * (5 << 20))
        file.seek(4 << 20)
        with pytest.raises(ObjectChanged):
            await asyncio.to_thread(file.read, 10)
        file.close()
