from __future__ import annotations

import multiprocessing
import os
import stat
import threading
from pathlib import Path

import pytest

from storage.cache.files import CacheFolder
from storage.errors import ConfigurationError

NAME = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2


def write(folder: CacheFolder, name: str, data: bytes) -> None:
    with folder.create(name, size=len(data)) as fd:
        os.write(fd, data)


def test_a_file_is_private_whole_and_found_again(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "cache")
    write(folder, NAME, b"data")
    fd = CacheFolder(tmp_path / "cache").open(NAME, size=4)
    assert fd is not None
    assert os.pread(fd, 10, 0) == b"data"
    os.close(fd)
    assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700
    (path,) = folder.root.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [(file.name, file.size) for file in folder.files()] == [(NAME, 4)]


def test_what_is_missing_or_of_another_size_is_not_opened(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    assert folder.open(NAME, size=4) is None
    write(folder, NAME, b"data")
    assert folder.open(NAME, size=5) is None


def test_a_file_that_is_not_finished_never_appears(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    with pytest.raises(RuntimeError), folder.create(NAME, size=4) as fd:
        os.write(fd, b"da")
        raise RuntimeError
    with pytest.raises(OSError, match="2 bytes instead of 4"), folder.create(NAME, size=4) as fd:
        os.write(fd, b"da")
    assert list(tmp_path.iterdir()) == []


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "cache")
    (tmp_path / "elsewhere").write_bytes(b"data")
    (folder.root / f"{NAME}.shard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        folder.open(NAME, size=4)
    assert folder.files() == []


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "ABCDEF0123456789", "0123/4567", NAME + "\n"])
def test_only_digests_become_names(tmp_path: Path, name: str) -> None:
    folder = CacheFolder(tmp_path)
    with pytest.raises(ValueError, match="hex digests"):
        folder.open(name, size=1)


def test_a_folder_that_others_may_write_into_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(ConfigurationError, match="chmod go-w"):
        CacheFolder(tmp_path / "cache")


def test_removing_spares_those_who_read(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    write(folder, NAME, b"data")
    fd = folder.open(NAME, size=4)
    folder.remove(NAME)
    folder.remove(NAME)
    assert fd is not None
    assert os.pread(fd, 4, 0) == b"data"
    os.close(fd)


def test_sweeping_deletes_what_the_dead_left_and_nothing_else(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    (tmp_path / "tmp-0123456789abcdef").write_bytes(b"half")
    (tmp_path / "mine.txt").write_bytes(b"not the cache's")
    write(folder, OTHER, b"whole")
    with folder.create(NAME, size=4) as fd:
        assert folder.sweep() == 1
        os.write(fd, b"data")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"{NAME}.shard", f"{OTHER}.shard", "mine.txt"])


def test_a_lock_excludes_and_leaves_no_file(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    lock = folder.acquire_lock(NAME, wait=False)
    assert lock is not None
    assert folder.acquire_lock(NAME, wait=False) is None
    other = folder.acquire_lock(OTHER, wait=False)
    assert other is not None
    folder.release_lock(OTHER, other)
    folder.release_lock(NAME, lock)
    again = folder.acquire_lock(NAME, wait=False)
    assert again is not None
    folder.release_lock(NAME, again)
    assert list(tmp_path.iterdir()) == []


def test_many_who_wait_get_the_lock_one_after_the_other(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    inside, most, rounds = 0, 0, 0
    guard = threading.Lock()

    def visit() -> None:
        nonlocal inside, most, rounds
        for _ in range(20):
            lock = folder.acquire_lock(NAME, wait=True)
            assert lock is not None
            with guard:
                inside, rounds = inside + 1, rounds + 1
                most = max(most, inside)
            with guard:
                inside -= 1
            folder.release_lock(NAME, lock)

    threads = [threading.Thread(target=visit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, rounds) == (1, 160)


def _hold_and_die(root: str) -> None:
    folder = CacheFolder(root)
    folder.acquire_lock(NAME, wait=False)
    os.kill(os.getpid(), 9)


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == -9
    folder = CacheFolder(tmp_path)
    lock = folder.acquire_lock(NAME, wait=False)
    assert lock is not None
    folder.release_lock(NAME, lock)
