"""Files in order: read in groups from the local drive, and a bounded number ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.importers.fetch_in_order import fetch_in_order
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem
from concurrent_loader.storage.importers.source_files import SourceFile
from concurrent_loader.storage.stores.backends.local import LocalStore

Items = AsyncGenerator[ImportedSample | ImportProblem, None]


@pytest.fixture(params=[1, 2])
def fetch(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Items]:
    """Makes the items of 500 tiny files, of which ``gone`` are deleted and ``longer`` changed after the listing."""

    def start(gone: int = -1, longer: int = -1, on_make: Callable[[], None] = lambda: None) -> Items:
        for number in range(500):
            (tmp_path / f"{number:03}").write_bytes(b"x" * number)
        files = [SourceFile(f"{number:03}", number, None, None) for number in range(500)]
        if gone >= 0:
            (tmp_path / f"{gone:03}").unlink()
            (tmp_path / f"{longer:03}").write_bytes(b"y" * 600)

        def make(file: SourceFile, data: bytes) -> ImportedSample:
            on_make()
            return ImportedSample(name=file.key, values={"x": data}, num_bytes=len(data))

        engine = FetchEngine(LocalStore(tmp_path))
        return fetch_in_order(engine, files, make, in_flight=4, max_bytes=1 << 20, num_threads=request.param)

    return start


def test_items_are_in_order_and_a_file_that_changed_is_a_problem(fetch: Callable[..., Items]) -> None:
    async def run() -> list[ImportedSample | ImportProblem]:
        return [item async for item in fetch(gone=70, longer=200)]

    items = asyncio.run(run())
    assert [item.name for item in items] == [f"{number:03}" for number in range(500)]
    assert {item.name for item in items if isinstance(item, ImportProblem)} == {"070", "200"}
    assert all(item.num_bytes == int(item.name) for item in items if isinstance(item, ImportedSample))


def test_four_groups_of_each_thread_are_in_memory_however_small_the_files_are(fetch: Callable[..., Items]) -> None:
    made: list[int] = []

    async def run() -> None:
        async with aclosing(fetch(on_make=lambda: made.append(1))) as items:
            await anext(items)

    asyncio.run(run())
    assert 64 <= len(made) <= 9 * 64
