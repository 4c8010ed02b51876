from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from concurrent_loader.storage.errors import ConfigurationError, CorruptData, StoreClosed, StoreError
from concurrent_loader.storage.importers import ImageFolder
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.importers.ingest_plan import IngestPart, WrittenPart
from concurrent_loader.storage.importers.item_run import IngestProgress
from concurrent_loader.storage.importers.made_part import MadePart
from concurrent_loader.storage.importers.part_processes import PartTarget, write_parts
from concurrent_loader.storage.shards.writing.upload_queue import UploadQueue
from concurrent_loader.storage.stores import MemoryStore, open_store
from concurrent_loader.storage.stores.objects import ObjectMeta

pytestmark = pytest.mark.usefixtures("no_leaks")

Ends = Callable[[int, UploadQueue], object]


class Target:
    """Makes parts of ten samples, whose uploads end as a function says."""

    def __init__(self, ends: Ends, makes: Callable[[int], object] = lambda number: None) -> None:
        self.ends = ends
        self.makes = makes
        self.finished: list[int] = []

    def make(self, part: IngestPart, report: Callable[[IngestProgress], None]) -> MadePart:
        report(_progress(5))
        self.makes(part.number)
        queue = UploadQueue(MemoryStore(f"memory://in-turn-{uuid4()}"), in_flight=1)

        def end() -> WrittenPart:
            self.ends(part.number, queue)
            self.finished.append(part.number)
            return WrittenPart(number=part.number, num_samples=10, num_bytes=0, shards=())

        return MadePart(_progress(10), end, queue)


def _progress(num_done: int) -> IngestProgress:
    return IngestProgress(num_done=num_done, num_total=None, num_skipped=0, num_bytes=0)


def parts(number: int) -> list[IngestPart]:
    return cast("list[IngestPart]", [SimpleNamespace(number=each) for each in range(number)])


def run(target: Target, number: int, seen: list[int] | None = None) -> Any:
    seen = [] if seen is None else seen
    return write_parts(parts(number), cast("PartTarget", target), lambda now: seen.append(now.num_done))


def test_a_part_is_made_while_the_uploads_of_the_one_before_end() -> None:
    is_made = [threading.Event() for _ in range(4)]

    def ends(number: int, _: UploadQueue) -> None:
        assert is_made[min(3, number + 1)].wait(10)

    seen: list[int] = []
    target = Target(ends, lambda number: is_made[number].set())
    assert [done.number for done in run(target, 4, seen)] == [0, 1, 2, 3]
    assert seen == [5, 15, 15, 15]  # since the last result: with the part that ends, and without the parts before it


def test_the_error_of_the_earliest_part_is_raised() -> None:
    def ends(number: int, _: UploadQueue) -> None:
        raise StoreError(f"part {number}")

    def makes(number: int) -> None:
        if number == 1:
            raise CorruptData("part 1")

    with pytest.raises(StoreError, match="part 0"):
        list(run(Target(ends, makes), 3))


def test_a_part_that_cannot_be_made_leaves_the_one_before_finished() -> None:
    def makes(number: int) -> None:
        if number == 1:
            raise CorruptData("part 1")

    target = Target(lambda number, _: None, makes)
    with pytest.raises(CorruptData):
        list(run(target, 3))
    assert target.finished == [0]


def test_a_source_whose_own_processes_end_is_an_error() -> None:
    def makes(number: int) -> None:
        if number == 1:
            raise BrokenProcessPool

    with pytest.raises(BrokenProcessPool):
        list(run(Target(lambda number, _: None, makes), 3))


def test_closing_cancels_the_uploads() -> None:
    def ends(number: int, queue: UploadQueue) -> None:
        if number == 1:
            queue.run(asyncio.sleep(3600))

    target = Target(ends)
    written = run(target, 3)
    assert next(written).number == 0
    written.close()
    assert target.finished == [0]


class StuckStore(MemoryStore):
    """Its uploads never end."""

    is_closed = False

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        await asyncio.Event().wait()
        raise AssertionError

    async def _close(self) -> None:
        self.is_closed = True


def test_cancelled_uploads_end_at_once_and_their_store_is_closed() -> None:
    store = StuckStore(f"memory://in-turn-{uuid4()}")
    queue = UploadQueue(store, in_flight=1)
    queue.put("a", b"a")
    made = MadePart(_progress(1), lambda: cast("WrittenPart", queue.flush()), queue)
    with ThreadPoolExecutor(1) as threads:
        end = threads.submit(made.finish)
        made.cancel()
        with pytest.raises(CancelledError):
            end.result(10)
    assert store.is_closed


def test_nothing_is_sent_after_a_cancellation() -> None:
    queue = UploadQueue(MemoryStore(f"memory://in-turn-{uuid4()}"), in_flight=1)
    queue.cancel()
    with pytest.raises(StoreClosed):
        queue.run(asyncio.sleep(0))
    queue.close()


def test_no_secret_of_the_store_is_shown() -> None:
    target = PartTarget("memory://in-turn", storage_options={"secret_access_key": "canary-secret"})
    with pytest.raises(ConfigurationError) as caught:
        target.write(parts(1)[0])
    frames = [frame.frame.f_locals for frame in caught.traceback]
    assert not any("canary-secret" in repr(value) for frame in frames[1:] for value in frame.values())


def test_the_counters_of_an_import_never_go_back(tmp_path: Path) -> None:
    for number in range(60):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff" + bytes(1000))
    seen: list[int] = []
    ingest(
        ImageFolder(open_store(tmp_path / "images"), verify="none"), f"memory://in-turn-{uuid4()}", shard_size="4KiB",
        on_progress=lambda now: seen.append(now.num_done),
    )  # fmt: skip
    assert seen == sorted(seen)
    assert seen[-1] == 60
