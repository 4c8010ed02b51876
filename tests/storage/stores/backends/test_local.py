from __future__ import annotations

import asyncio
import errno
import os

import pytest

from concurrent_loader.storage.errors import AccessDenied, ConfigurationError, NotFound, StoreError
from concurrent_loader.storage.stores.backends import local
from concurrent_loader.storage.stores.backends.local import LocalStore
from concurrent_loader.storage.testing.conformance.store_tests import StoreTests


class TestLocalStore(StoreTests):
    folders = True

    @pytest.fixture(autouse=True)
    def small_pages(self, monkeypatch):
        monkeypatch.setattr(local, "_LIST_PAGE_KEYS", 7)

    @pytest.fixture
    def open_again(self, tmp_path):
        return lambda: LocalStore(tmp_path / "not made yet" / "root")

    async def test_nothing_unfinished_stays(self, store, open_again):
        await asyncio.gather(*(store.put(f"a/{n % 3}", b"x" * n) for n in range(30)))
        await asyncio.gather(*(store.put_if_absent("a/3", b"x") for _ in range(9)), return_exceptions=True)
        assert sorted(entry.name for entry in (open_again()._root / "a").iterdir()) == ["0", "1", "2", "3"]


async def test_url_and_path_mean_the_same(tmp_path):
    await LocalStore(f"file://{tmp_path}").put("key", b"x")
    assert (tmp_path / "key").read_bytes() == b"x"
    assert LocalStore(tmp_path).url == LocalStore(f"file://{tmp_path}/").url == f"file://{tmp_path}"


async def test_files_of_others_are_objects(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file.txt").write_bytes(b"hello")
    (tmp_path / "folder" / "empty").mkdir()
    store = LocalStore(tmp_path)
    assert [meta.key async for meta in store.list()] == ["folder/file.txt"]
    assert bytes((await store.get("folder/file.txt")).data) == b"hello"


async def test_unfinished_files_are_invisible_and_their_names_taken(tmp_path):
    store = LocalStore(tmp_path)
    (tmp_path / ".unfinished-1-abc").write_bytes(b"half an obj")
    assert [meta.key async for meta in store.list()] == []
    with pytest.raises(ConfigurationError):
        await store.put("a/.unfinished-x/b", b"")


async def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    store = LocalStore(tmp_path)
    await store.put("key", b"old")

    def no_space(file, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(local.os, "write", no_space)
        with pytest.raises(StoreError, match="No space left"):
            await store.put("key", b"new")
    assert os.listdir(tmp_path) == ["key"]
    assert bytes((await store.get("key")).data) == b"old"


async def test_links_are_read_through(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "picture").write_bytes(b"pixels")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "picture")
    (root / "broken").symlink_to(tmp_path / "nowhere")
    store = LocalStore(root)
    assert [meta.key async for meta in store.list()] == ["file", "link/picture"]
    assert bytes((await store.get("link/picture")).data) == b"pixels"


async def test_links_that_lead_out_are_not_written_through(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "precious")
    store = LocalStore(root)
    for attempt in (store.put("link/key", b"x"), store.put_if_absent("link/key", b"x"), store.delete("link/precious")):
        with pytest.raises(ConfigurationError, match="symbolic link"):
            await attempt
    # The link itself is the store's own, and is replaced.
    await store.put("file", b"mine")
    assert (outside / "precious").read_bytes() == b"precious"
    assert (root / "file").read_bytes() == b"mine"


async def test_a_link_to_a_folder_above_is_no_endless_list(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "key").write_bytes(b"x")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    keys = [meta.key async for meta in LocalStore(tmp_path).list()]
    assert keys == ["a/key"]


async def test_pipes_are_no_objects(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    store = LocalStore(tmp_path)
    assert [meta.key async for meta in store.list()] == []
    with pytest.raises(NotFound):
        await store.get("pipe")


def test_files_are_read_together(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    num_open = len(os.listdir("/dev/fd"))
    files = [("a", 1), ("b", 0), ("missing", 1), ("folder", 1), ("pipe", 0), ("../a", 1), ("a", 2), ("a", 0), ("a", 1)]
    found = LocalStore(tmp_path).read_together(files)
    assert found == [b"1", b"", None, None, None, None, None, None, b"1"]
    assert len(os.listdir("/dev/fd")) == num_open


async def test_names_that_no_key_can_have_are_reported(tmp_path):
    (tmp_path / "new\nline").write_bytes(b"x")
    with pytest.raises(StoreError, match="invalid key"):
        [meta async for meta in LocalStore(tmp_path).list()]


async def test_what_cannot_be_listed_is_named_one_by_one(tmp_path, monkeypatch):
    good = ["a/1", "b/2", "z"]
    for key in good:
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(b"x")
    (tmp_path / "a" / "new\nline").write_bytes(b"x")
    (tmp_path / os.fsdecode(b"caf\xe9")).write_bytes(b"x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "b" / "gone").symlink_to("nowhere")
    (tmp_path / "locked").mkdir()
    os.mkfifo(tmp_path / "pipe")
    scandir = os.scandir

    def guarded(path):
        if os.fspath(path).endswith("locked"):  # root may read everything
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scandir(path)

    monkeypatch.setattr("concurrent_loader.storage.stores.backends.local.os.scandir", guarded)
    problems = []
    assert [meta.key async for meta in LocalStore(tmp_path).list(on_error=problems.append)] == good
    assert [(problem.key, type(problem)) for problem in problems] == [
        ("a/new\nline", StoreError),
        ("b/gone", NotFound),
        ("caf\udce9", StoreError),
        ("locked/", AccessDenied),
        ("loop", NotFound),
    ]
    with pytest.raises(StoreError):
        [meta async for meta in LocalStore(tmp_path).list()]
    assert [meta.key async for meta in LocalStore(tmp_path).list("b")] == ["b/2"]


async def test_long_segments_are_refused_in_words(tmp_path):
    with pytest.raises(StoreError, match="255 bytes"):
        await LocalStore(tmp_path).put("a/" + "b" * 300, b"x")


async def test_permissions(tmp_path, monkeypatch):
    (tmp_path / "secret").write_bytes(b"x")

    def refuse(*_args, **_options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("concurrent_loader.storage.stores.backends.local.os.open", refuse)  # root may read everything
    with pytest.raises(AccessDenied):
        await LocalStore(tmp_path).get("secret")


async def test_deleting_the_last_key_removes_its_folders_but_not_the_root(tmp_path):
    store = LocalStore(tmp_path)
    await store.put("a/b/c", b"x")
    await store.delete("a/b/c")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
async def test_put_and_delete_race_over_a_folder(tmp_path):
    store = LocalStore(tmp_path)

    async def come_and_go(n):
        for _ in range(30):
            await store.put(f"folder/{n}", b"x")
            await store.delete(f"folder/{n}")

    await asyncio.gather(*(come_and_go(n) for n in range(4)))
    assert [meta.key async for meta in store.list()] == []
