from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import filling
from benchmarks.filling import has_shards, ingest, ingest_command, put_objects
from benchmarks.photos import PhotoFolder, make_photos
from concurrent_loader.storage.shards.writing.writer import ShardWriter
from concurrent_loader.storage.stores import open_store


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> PhotoFolder:
    return make_photos(tmp_path_factory.mktemp("photos"), count=12)


def put(url: str, key: str, data: bytes) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            await store.put(key, data)

    asyncio.run(run())


def get(url: str, key: str) -> bytes:
    async def run() -> bytes:
        async with open_store(url) as store:
            return bytes((await store.get(key)).data)

    return asyncio.run(run())


def test_every_photograph_becomes_an_object_once(photos: PhotoFolder, tmp_path: Path) -> None:
    url = str(tmp_path / "bucket")
    done: list[None] = []

    assert put_objects(photos, url, {}, on_object=lambda: done.append(None)) == 12
    assert len(done) == 12
    for path in photos.paths():
        assert get(url, f"{path.parent.name}/{path.name}") == path.read_bytes()

    assert put_objects(photos, url, {}, on_object=lambda: done.append(None)) == 0
    assert len(done) == 24


def test_an_object_that_was_cut_short_is_put_again(photos: PhotoFolder, tmp_path: Path) -> None:
    url = str(tmp_path / "bucket")
    put_objects(photos, url, {})
    path = photos.paths()[0]
    key = f"{path.parent.name}/{path.name}"
    put(url, key, path.read_bytes()[:-1])

    assert put_objects(photos, url, {}) == 1
    assert get(url, key) == path.read_bytes()


@pytest.mark.parametrize("earlier", ["none", "the same", "fewer samples", "damaged"])
def test_shards_of_an_earlier_run_are_used_only_if_they_are_whole(
    photos: PhotoFolder, tmp_path: Path, earlier: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = str(tmp_path / "shards")
    if earlier != "none":
        with ShardWriter(url, columns={"label": "int64"}) as writer:
            for label in range(5 if earlier == "fewer samples" else photos.count):
                writer.write({"label": label})
    if earlier == "damaged":
        put(url, "manifests/0000000001.clm", b"not a manifest")

    assert has_shards(photos, url, {}) is (earlier == "the same")

    left = [path for path in (tmp_path / "shards").rglob("*") if path.is_file()]
    assert bool(left) is (earlier == "the same")
    assert bool(caplog.records) is (earlier == "damaged")


def test_the_command_that_is_shown_is_the_one_that_runs_and_has_no_secrets(
    photos: PhotoFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(filling, "run_command", lambda command, env: ran.append((command, env)))
    options = {"endpoint_url": "http://127.0.0.1:9", "access_key_id": "who", "secret_access_key": "hush"}

    ingest(photos, "s3://demo/shards", options)

    ((command, environment),) = ran
    typed = ingest_command(photos, "s3://demo/shards", "http://127.0.0.1:9")
    assert command[-len(typed) + 1 :] == typed[1:]
    assert Path(command[0]).name == typed[0] or command[1:3] == ["-m", "concurrent_loader.cli.app"]
    assert shlex.join(typed).startswith("concurrent-loader ingest image-folder ")
    assert "hush" not in shlex.join(command)
    assert environment["AWS_SECRET_ACCESS_KEY"] == "hush"
    assert Path(command[0]).parent == Path(sys.executable).parent
