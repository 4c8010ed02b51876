from __future__ import annotations

import asyncio
import io
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from PIL import Image

from concurrent_loader.storage.errors import AccessDenied, ConfigurationError, NotFound
from concurrent_loader.storage.importers import ImageFolder, ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.stores import LocalStore, MemoryStore, open_store
from concurrent_loader.storage.stores.backends.aiobotocore import AiobotocoreStore
from concurrent_loader.storage.stores.options import S3Options, parse_options
from concurrent_loader.storage.testing.faults.fault_store import Call, Fail, Fault, FaultStore, Wait, in_order

pytestmark = pytest.mark.usefixtures("no_leaks")


def picture(format_: str = "JPEG", seed: int = 0, size: tuple[int, int] = (40, 30)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format_)
    return file.getvalue()


async def folder(files: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore(f"memory://folder-{uuid4()}")
    for key, data in files.items():
        await store.put(key, data)
    return store


async def run(
    store: Any, onto: Manifest | None = None, **options: Any
) -> tuple[ImportScan, list[ImportedSample | ImportProblem]]:
    importer = ImageFolder(store, **options)
    scan = await importer.scan(onto)
    async with aclosing(importer.read()) as items:
        return scan, [item async for item in items]


def samples(items: list[ImportedSample | ImportProblem]) -> list[ImportedSample]:
    assert all(isinstance(item, ImportedSample) for item in items), items
    return [item for item in items if isinstance(item, ImportedSample)]


CLASSES = {
    "b/2.jpeg": picture(seed=1),
    "b/1.JPG": picture(seed=2),
    "a/deep/er/3.jpg": picture(seed=3),
    "ä b/ü 4.jpg": picture(seed=4),
    "Z/日本.jpg": picture(seed=5),
}


class TestScan:
    async def test_classes_are_first_level_folders_in_bytewise_order(self) -> None:
        scan, items = await run(await folder(CLASSES))
        assert scan.metadata == {"classes": {"label": ["Z", "a", "b", "ä b"]}}
        assert scan.columns == {"image": "jpeg", "label": "int64", "path": "str"}
        assert (scan.num_samples, scan.num_bytes) == (5, sum(map(len, CLASSES.values())))
        found = {sample.name: sample for sample in samples(items)}
        assert {name: sample.values["label"] for name, sample in found.items()} == {
            "b/2.jpeg": 2,
            "b/1.JPG": 2,
            "a/deep/er/3.jpg": 1,
            "ä b/ü 4.jpg": 3,
            "Z/日本.jpg": 0,
        }
        assert all(sample.values["image"] == CLASSES[name] for name, sample in found.items())
        assert all(sample.values["path"] == name for name, sample in found.items())

    async def test_other_files_are_ignored_and_hidden_ones_unseen(self) -> None:
        others = {
            "a/notes.txt": b"",
            "README.md": b"",
            "jpg": b"",
            "a/.hidden.jpg": b"",
            ".git/x.jpg": b"",
            "a/x.jpg.bak": b"",
        }
        scan, items = await run(await folder({**CLASSES, **others}))
        assert len(samples(items)) == 5
        assert scan.num_ignored == 4

    async def test_mixed_formats(self) -> None:
        files = {"a/1.jpg": picture(), "a/2.PNG": picture("PNG"), "b/3.webp": picture("WEBP")}
        scan, items = await run(await folder(files))
        assert scan.columns["image"] == "image"
        assert {sample.name: sample.values["image"] for sample in samples(items)} == files

    async def test_image_at_the_root(self) -> None:
        store = await folder({**CLASSES, "stray.jpg": picture()})
        with pytest.raises(ConfigurationError, match="class folder") as caught:
            await run(store)
        assert caught.value.key == "stray.jpg"
        scan, items = await run(store, classes=False)
        assert scan.columns == {"image": "jpeg", "path": "str"}
        assert scan.metadata == {}
        assert len(samples(items)) == 6
        assert set(samples(items)[0].values) == {"image", "path"}

    async def test_nothing_there(self, tmp_path: Path) -> None:
        for store in (await folder({"a/x.txt": b""}), LocalStore(tmp_path / "missing")):
            with pytest.raises(NotFound):
                await run(store)

    async def test_mistakes_are_named(self, tmp_path: Path) -> None:
        for files, error, words in (
            ({}, NotFound, "empty, or does not exist"),
            ({"a/x.heic": b"", "b.tiff": b""}, NotFound, "none of 2 files ends in jpeg, jpg, png, webp.*heic, tiff"),
            ({"manifests/0000000001.clm": b""}, NotFound, "a dataset of shards already"),
            ({"1.jpg": b"", "2.jpg": b""}, ConfigurationError, "all images lie directly.*--no-classes"),
            ({"1.jpg": b"", "a/2.jpg": b""}, ConfigurationError, "1 of 2 lie directly.*--no-classes"),
        ):
            with pytest.raises(error, match=words):
                await run(await folder(files))
        (tmp_path / "file.zip").write_bytes(b"PK")
        (tmp_path / "empty").mkdir()
        for name, words in (("file.zip", "this is a file"), ("empty", "folder is empty"), ("gone", "no such folder")):
            with pytest.raises(NotFound, match=words):
                await run(LocalStore(tmp_path / name))

    async def test_the_identity_is_of_the_files_and_of_what_is_made_of_them(self, tmp_path: Path) -> None:
        for name in ("a/1.jpg", "b/2.jpg"):
            (tmp_path / name).parent.mkdir()
            (tmp_path / name).write_bytes(picture())
        store = LocalStore(tmp_path)
        first = (await run(store))[0].identity
        assert first is not None
        assert (await run(store, in_flight=1))[0].identity == first
        others = {(await run(store, **options))[0].identity for options in ({"classes": False}, {"shuffle_seed": 1})}
        (tmp_path / "b" / "2.jpg").write_bytes(picture(seed=1))
        others.add((await run(store))[0].identity)
        assert len(others | {first}) == 4

    async def test_appending_keeps_numbers_and_type(self) -> None:
        onto = Manifest(
            snapshot=1,
            schema={"image": "image", "label": "int64", "path": "str"},
            metadata={"classes": {"label": ["zebra", "b"]}},
        )
        scan, items = await run(await folder(CLASSES), onto)
        assert scan.metadata["classes"]["label"] == ["zebra", "b", "Z", "a", "ä b"]
        assert scan.columns["image"] == "image"
        assert {sample.values["label"] for sample in samples(items) if sample.name.startswith("b/")} == {1}

    @pytest.mark.parametrize("metadata", [{}, {"classes": 3}, {"classes": {"label": "x"}}, {"classes": {"label": [1]}}])
    async def test_appending_to_something_without_class_names(self, metadata: dict[str, Any]) -> None:
        onto = Manifest(snapshot=1, schema={"x": "int8"}, metadata=metadata)
        assert (await run(await folder(CLASSES), onto))[0].metadata["classes"]["label"] == ["Z", "a", "b", "ä b"]


class TestOrder:
    async def test_sorted_or_shuffled_and_always_the_same(self) -> None:
        files = {f"{number % 3}/{number}.jpg": picture() for number in range(30)}
        names = {}
        for seed in (None, 0, 1):
            runs = [await run(await folder(files), shuffle_seed=seed, in_flight=in_flight) for in_flight in (1, 7)]
            first, second = [[item.name for item in items] for _, items in runs]
            assert first == second
            names[seed] = first
        assert names[None] == sorted(files)
        assert sorted(names[0]) == sorted(names[1]) == sorted(files)
        assert len({tuple(order) for order in names.values()}) == 3

    async def test_classes_are_mixed(self) -> None:
        _, items = await run(await folder({f"{number // 50}/{number}.jpg": picture() for number in range(100)}))
        half = [sample.values["label"] for sample in samples(items)[:50]]
        assert 10 < sum(half) < 40  # type: ignore[arg-type]


DAMAGED = {
    "empty": b"",
    "no image": b"just text",
    "another format": picture("GIF"),
    "mislabelled": picture("PNG"),
    "cut": picture()[:-200],
    "header alone": picture()[:20],
    "magic alone": b"\xff\xd8\xff",
}


class TestDamagedFiles:
    @pytest.mark.parametrize("name", DAMAGED)
    async def test_are_named_and_the_others_come(self, name: str) -> None:
        store = await folder({**CLASSES, "b/bad é.jpg": DAMAGED[name]})
        scan, items = await run(store)
        (problem,) = [item for item in items if isinstance(item, ImportProblem)]
        assert problem.name == "b/bad é.jpg"
        assert problem.reason
        assert " at 0x" not in problem.reason
        assert len(items) == scan.num_samples == 6

    async def test_how_closely_they_are_looked_at(self) -> None:
        store = await folder({f"a/{name}.jpg": data for name, data in DAMAGED.items()})
        passed = {}
        for verify in ("decode", "header", "none"):
            _, items = await run(store, verify=verify)
            passed[verify] = {Path(item.name).stem for item in items if isinstance(item, ImportedSample)}
        assert passed == {"decode": set(), "header": {"cut"}, "none": {"cut", "header alone", "magic alone"}}

    @pytest.mark.parametrize("verify", ["decode", "header"])
    async def test_a_damaged_avif_called_jpg_is_named(self, verify: str) -> None:
        data = picture("AVIF")
        no_item = data.replace(b"pitm\0\0\0\0\0\x01", b"pitm\0\0\0\0\0\x09")
        assert no_item != data
        _, items = await run(await folder({"a/x.jpg": no_item}), image_type="image", verify=verify)
        assert [item.name for item in items if isinstance(item, ImportProblem)] == ["a/x.jpg"]

    @pytest.mark.parametrize("kind", ["WEBP", "GIF", "AVIF"])
    async def test_an_animation_is_named(self, kind: str) -> None:
        # No loader would decode it, and it is to be found now and not in the middle of a training run.
        file = io.BytesIO()
        frames = [Image.fromarray(np.full((8, 8, 3), gray, np.uint8)) for gray in (0, 99, 255)]
        frames[0].save(file, kind, save_all=True, append_images=frames[1:])
        store = await folder({"a/x.webp": file.getvalue(), "a/y.webp": picture(kind)})
        _, items = await run(store, image_type="image")
        (problem,) = [item for item in items if isinstance(item, ImportProblem)]
        assert (problem.name, problem.reason) == ("a/x.webp", "an animation is not a single image")
        _, items = await run(store, image_type="image", verify="header")
        assert len(samples(items)) == 2

    async def test_a_photo_with_a_preview_beside_it_is_welcome(self) -> None:
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, "MPO", save_all=True, append_images=[Image.new("RGB", (4, 4))])
        assert len(samples((await run(await folder({"a/x.jpg": file.getvalue()})))[1])) == 1

    async def test_a_png_called_jpg_is_welcome_where_the_type_is_image(self) -> None:
        _, items = await run(await folder({"a/x.jpg": picture("PNG")}), image_type="image")
        assert len(samples(items)) == 1

    async def test_truncated_png_and_webp(self) -> None:
        files = {f"a/x.{kind}": picture(kind.upper())[:-30] for kind in ("png", "webp")}
        _, items = await run(await folder(files))
        assert all(isinstance(item, ImportProblem) for item in items)

    async def test_a_file_that_vanishes_or_changes_meanwhile(self) -> None:
        store = await folder(CLASSES)
        importer = ImageFolder(store)
        await importer.scan()
        await store.delete("b/2.jpeg")
        await store.put("b/1.JPG", picture(size=(9, 9)))
        items = [item async for item in importer.read()]
        assert {item.name for item in items if isinstance(item, ImportProblem)} == {"b/2.jpeg", "b/1.JPG"}

    async def test_too_large_a_file_is_not_even_fetched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("concurrent_loader.storage.importers.fetch_in_order.MAX_FILE_BYTES", 100)
        store = FaultStore(await folder(CLASSES), lambda call: ())
        _, items = await run(store)
        assert all(isinstance(item, ImportProblem) for item in items)
        assert not [call for call in store.calls if call.operation == "get"]

    async def test_pixel_bombs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        _, items = await run(await folder({"a/x.jpg": picture()}))
        assert isinstance(items[0], ImportProblem)

    async def test_a_source_that_cannot_be_read_is_an_error(self) -> None:
        with pytest.raises(AccessDenied):
            await run(FaultStore(await folder(CLASSES), in_order([None, None, Fail(AccessDenied)])))


class TestNamesThatCannotBeKeys:
    async def test_each_is_a_problem_where_it_may_hide_an_image(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "good.jpg").write_bytes(picture())
        (tmp_path / "a" / "new\nline.jpg").write_bytes(picture())
        (tmp_path / "a" / "new\nline.txt").write_bytes(b"")
        (tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
        (tmp_path / os.fsdecode(b"caf\xe9") / "x.jpg").write_bytes(picture())
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / ".loop.jpg").symlink_to(".loop.jpg")
        scan, items = await run(LocalStore(tmp_path))
        assert (scan.num_samples, scan.num_ignored) == (4, 1)
        problems = {item.name for item in items if isinstance(item, ImportProblem)}
        assert problems == {"a/new\nline.jpg", "caf\udce9/x.jpg", "loop"}
        assert [item.name for item in items if isinstance(item, ImportedSample)] == ["a/good.jpg"]
        assert scan.metadata == {"classes": {"label": ["a"]}}

    @pytest.mark.s3
    @pytest.mark.parametrize("client", ["native", "aiobotocore"])
    async def test_in_a_bucket(self, moto_bucket: Any, client: str) -> None:
        options = moto_bucket.storage_options
        async with AiobotocoreStore(moto_bucket.url, parse_options(S3Options, options, url=moto_bucket.url)) as raw:
            await raw._put("a/1.jpg", memoryview(picture()), if_absent=False)
            for key in ("a//2.jpg", "a/../3.jpg", "a/\r4.jpg", "a/\x015.jpg", "a//notes.txt"):
                await raw._put(key, memoryview(b"x"), if_absent=False)
            await raw._put("z/9.jpg", memoryview(picture()), if_absent=False)
        async with open_store(moto_bucket.url, client=client, **options) as store:
            scan, items = await run(store)
            assert [meta.key async for meta in store.list("z")] == ["z/9.jpg"]
        assert {item.name for item in items if isinstance(item, ImportProblem)} == {
            "a//2.jpg", "a/../3.jpg", "a/\r4.jpg", "a/\x015.jpg"
        }  # fmt: skip
        assert {item.name for item in items if isinstance(item, ImportedSample)} == {"a/1.jpg", "z/9.jpg"}
        assert scan.num_ignored == 1


class TestFlow:
    async def test_requests_overlap_and_are_bounded(self) -> None:
        store = FaultStore(await folder({f"a/{number:03}.jpg": picture() for number in range(50)}), lambda call: ())
        running = most = 0
        original = store._get

        async def counted(*args: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            try:
                return await original(*args)
            finally:
                running -= 1

        store._get = counted  # type: ignore[method-assign]
        await run(store, in_flight=5)
        assert most == 5

    async def test_bytes_ahead_are_bounded_and_a_larger_file_works(self) -> None:
        files = {f"a/{number}.jpg": picture(size=(60, 60)) for number in range(10)}
        size = len(files["a/0.jpg"])
        store = FaultStore(await folder(files), lambda call: ())
        importer = ImageFolder(store, bytes_in_flight=2 * size)
        await importer.scan()
        num_taken = 0
        async for _ in importer.read():
            num_taken += 1
            num_fetched = len([call for call in store.calls if call.operation == "get"])
            assert num_fetched <= num_taken + 2
        assert num_taken == 10
        assert len((await run(store, bytes_in_flight=1))[1]) == 10

    async def test_closing_early_leaves_nothing(self) -> None:
        blocked = asyncio.Event()

        def script(call: Call) -> list[Fault]:
            return [] if call.number < 3 else [Wait(blocked.wait)]

        store = FaultStore(await folder({f"a/{number}.jpg": picture() for number in range(10)}), script)
        importer = ImageFolder(store, in_flight=2)
        await importer.scan()
        items = importer.read()
        assert isinstance(await anext(items), ImportedSample)
        await items.aclose()

    @pytest.mark.parametrize(
        "options", [{"verify": "x"}, {"image_type": "gif"}, {"shuffle_seed": -1}, {"in_flight": 0}]
    )
    async def test_options_that_cannot_work(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            ImageFolder(await folder({}), **options)


async def test_from_a_local_folder(tmp_path: Path) -> None:
    for name, data in CLASSES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    _, items = await run(LocalStore(tmp_path))
    assert {sample.name: sample.values["image"] for sample in samples(items)} == CLASSES
