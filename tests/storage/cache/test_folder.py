from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from concurrent_loader.storage.cache.blocking_io import Drive
from concurrent_loader.storage.cache.folder import CachedFile, CacheFolder, FileKind
from concurrent_loader.storage.errors import ConfigurationError

NAME = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2

pytestmark = pytest.mark.usefixtures("no_leaks")
Open = Callable[..., CacheFolder]


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[Open]:
    opened: list[CacheFolder] = []

    def make(root: Path = tmp_path / "cache", drive: Drive | None = None) -> CacheFolder:
        opened.append(CacheFolder(root, drive=drive))
        return opened[-1]

    yield make
    for folder in opened:
        folder.close()
        folder.close()


@pytest.fixture
def folder(open_folder: Open) -> CacheFolder:
    return open_folder()


def write(folder: CacheFolder, name: str, data: bytes) -> None:
    incoming = folder.begin(size=len(data))
    folder.drive.write(incoming.fd, memoryview(data), 0)
    folder.publish(incoming, name)
    os.close(incoming.fd)


def the_file(folder: CacheFolder, kind: FileKind = FileKind.SHARD) -> CachedFile:
    (file,) = [file for file in folder.files() if file.kind is kind]
    return file


def names(folder: CacheFolder) -> list[str]:
    return sorted(path.name for path in folder.root.iterdir())


class TestShards:
    def test_a_file_is_private_whole_and_found_again(self, folder: CacheFolder, open_folder: Open) -> None:
        old = os.umask(0)
        try:
            write(folder, NAME, b"data")
        finally:
            os.umask(old)
        fd = open_folder().open(NAME, size=4)
        assert fd is not None
        assert os.pread(fd, 10, 0) == b"data"
        os.close(fd)
        assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700
        (path,) = folder.root.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        file = the_file(folder)
        assert (file.name, file.size, file.num_bytes) == (NAME, 4, 4)

    def test_what_is_missing_is_not_opened(self, folder: CacheFolder) -> None:
        assert folder.open(NAME, size=4) is None

    def test_a_file_that_was_cut_is_thrown_away(self, folder: CacheFolder) -> None:
        write(folder, NAME, b"data")
        assert folder.open(NAME, size=5) is None
        assert names(folder) == []

    def test_a_file_that_is_not_finished_never_appears(self, folder: CacheFolder) -> None:
        incoming = folder.begin(size=4)
        assert the_file(folder, FileKind.INCOMING).num_bytes == 4  # its room is taken
        assert folder.open(NAME, size=4) is None
        folder.abandon(incoming)
        assert names(folder) == []

    def test_removing_spares_those_who_read(self, folder: CacheFolder) -> None:
        write(folder, NAME, b"data")
        fd = folder.open(NAME, size=4)
        folder.remove(f"{NAME}.shard")
        folder.remove(f"{NAME}.shard")
        assert fd is not None
        assert os.pread(fd, 4, 0) == b"data"
        os.close(fd)

    def test_what_is_in_use_is_not_evicted(self, folder: CacheFolder, open_folder: Open) -> None:
        write(folder, NAME, b"data")
        fd = folder.open(NAME, size=4)
        assert fd is not None
        file = the_file(folder)
        assert not open_folder().evict(file)
        os.close(fd)
        assert open_folder().evict(file)
        assert not open_folder().evict(file)
        assert folder.open(NAME, size=4) is None

    def test_what_is_being_evicted_is_not_opened(self, folder: CacheFolder) -> None:
        write(folder, NAME, b"data")
        with (folder.root / f"{NAME}.shard").open() as held:
            folder.drive.lock(held.fileno())
            assert folder.open(NAME, size=4) is None
        assert names(folder) == [f"{NAME}.shard"]

    def test_a_fresh_file_is_leased_to_its_writer(self, folder: CacheFolder) -> None:
        incoming = folder.begin(size=4)
        folder.publish(incoming, NAME)
        assert not folder.evict(the_file(folder))
        reader = folder.open(NAME, size=4)
        assert reader is not None
        for fd in (reader, incoming.fd):
            os.close(fd)
        assert folder.evict(the_file(folder))


class TestStrangers:
    @pytest.mark.parametrize("what", ["link", "folder", "pipe"])
    def test_what_is_no_file_is_neither_followed_nor_waited_for_nor_deleted(
        self, folder: CacheFolder, tmp_path: Path, what: str
    ) -> None:
        place = folder.root / f"{NAME}.shard"
        (tmp_path / "elsewhere").write_bytes(b"data")
        if what == "link":
            place.symlink_to(tmp_path / "elsewhere")
        elif what == "folder":
            place.mkdir()
        else:
            os.mkfifo(place)
        with pytest.raises(OSError):
            folder.open(NAME, size=4)
        with pytest.raises(OSError):
            folder.evict(CachedFile(place.name, NAME, FileKind.SHARD, 4, 4, 0.0))
        assert folder.files() == []
        assert names(folder) == [place.name]

    @pytest.mark.parametrize("name", ["", "../../etc/passwd", "ABCDEF0123456789", "0123/4567", NAME + "\n"])
    def test_only_digests_become_names(self, folder: CacheFolder, name: str) -> None:
        with pytest.raises(ValueError, match="hex digests"):
            folder.open(name, size=1)

    @pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
    def test_a_folder_that_others_may_write_into_is_refused(self, open_folder: Open, tmp_path: Path, mode: int) -> None:
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache").chmod(mode)
        with pytest.raises(ConfigurationError, match="chmod go-w"):
            open_folder()

    def test_what_a_link_leads_to_is_what_is_checked(self, open_folder: Open, tmp_path: Path) -> None:
        """Between a look at the path and its use, a link could be turned elsewhere; so the open folder is looked at."""
        (tmp_path / "mine").mkdir(mode=0o700)
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs").chmod(0o777)
        link = tmp_path / "link"
        link.symlink_to(tmp_path / "mine")

        class Turning(Drive):
            def open_folder(self, path: str | os.PathLike[str]) -> int:
                link.unlink()
                link.symlink_to(tmp_path / "theirs")
                return super().open_folder(path)

        with pytest.raises(ConfigurationError):
            open_folder(link, Turning())
        link.unlink()
        link.symlink_to(tmp_path / "mine")
        folder = open_folder(link)
        link.unlink()
        link.symlink_to(tmp_path / "theirs")
        write(folder, NAME, b"data")
        assert [path.name for path in (tmp_path / "mine").iterdir()] == [f"{NAME}.shard"]

    def test_another_users_folder_is_not_used(self, open_folder: Open) -> None:
        class Foreign(Drive):
            def status(self, fd: int) -> os.stat_result:
                real = list(super().status(fd))
                real[stat.ST_UID] = os.geteuid() + 1
                return os.stat_result(real)

        with pytest.raises(PermissionError, match="another user"):
            open_folder(drive=Foreign())

    def test_sweeping_deletes_what_the_dead_left_and_nothing_else(self, folder: CacheFolder) -> None:
        (folder.root / "tmp-0123456789abcdef").write_bytes(b"half")
        (folder.root / f"{NAME}.lock").write_bytes(b"")
        (folder.root / "mine.txt").write_bytes(b"not the cache's")
        (folder.root / "tmp-mine").write_bytes(b"not the cache's")
        write(folder, OTHER, b"whole")
        incoming = folder.begin(size=4)
        lock = folder.lock_shard(OTHER, wait=False)
        assert lock is not None
        assert folder.sweep() == 2
        assert names(folder) == sorted(["mine.txt", "tmp-mine", incoming.file_name, f"{OTHER}.shard", f"{OTHER}.lock"])
        folder.unlock_shard(OTHER, lock)
        folder.abandon(incoming)

    @pytest.mark.parametrize("moment", ["open", "lock"])
    def test_a_sweep_does_not_take_a_file_that_is_being_started(
        self, folder: CacheFolder, open_folder: Open, moment: str
    ) -> None:
        # Another process opens the cache, and sweeps it, after the file's creation or just before its lock is there.
        class Interrupted(Drive):
            num_swept = 0

            def open(self, name: str, flags: int, *, folder: int) -> int:
                fd = super().open(name, flags, folder=folder)
                if moment == "open":
                    self.sweep_once()
                return fd

            def lock(self, fd: int, *, shared: bool = False, wait: bool = False) -> bool:
                if moment == "lock" and not self.num_swept:
                    with Path(f"/proc/self/fd/{fd}").readlink().open() as swept:  # its sweep has the lock
                        other.drive.lock(swept.fileno())
                        self.num_swept = 1
                        assert not super().lock(fd, shared=shared, wait=wait)
                    return False
                return super().lock(fd, shared=shared, wait=wait)

            def sweep_once(self) -> None:
                if not self.num_swept:
                    self.num_swept = other.sweep()

        other, drive = folder, Interrupted()
        interrupted = open_folder(drive=drive)
        write(interrupted, NAME, b"data")
        assert drive.num_swept == 1
        assert names(folder) == [f"{NAME}.shard"]

    def test_a_published_file_is_never_without_its_lease(self, folder: CacheFolder, open_folder: Open) -> None:
        class Evicting(Drive):
            def rename(self, name: str, new: str, *, folder: int) -> None:
                assert not any(other.evict(file) for file in other.files())
                super().rename(name, new, folder=folder)
                assert not any(other.evict(file) for file in other.files())
                readers.append(other.open(NAME, size=4))

        other = folder
        readers: list[int | None] = []
        write(open_folder(drive=Evicting()), NAME, b"data")
        (reader,) = readers
        assert reader is not None
        os.close(reader)


class TestDeletedFolder:
    def test_it_is_made_again(self, folder: CacheFolder) -> None:
        write(folder, NAME, b"data")
        shutil.rmtree(folder.root)
        assert folder.files() == []
        assert folder.open(NAME, size=4) is None
        write(folder, NAME, b"data")
        assert names(folder) == [f"{NAME}.shard"]
        assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700

    def test_one_that_others_may_write_into_is_refused_then_too(self, folder: CacheFolder) -> None:
        shutil.rmtree(folder.root)
        folder.root.mkdir()
        folder.root.chmod(0o777)
        with pytest.raises(PermissionError, match="chmod go-w"):
            folder.begin(size=4)

    def test_a_closed_folder_says_so(self, folder: CacheFolder) -> None:
        folder.close()
        with pytest.raises(OSError, match="closed"):
            folder.open(NAME, size=4)


class TestLocks:
    def test_a_lock_excludes_and_leaves_no_file(self, folder: CacheFolder) -> None:
        lock = folder.lock_shard(NAME, wait=False)
        assert lock is not None
        assert folder.lock_shard(NAME, wait=False) is None
        other = folder.lock_shard(OTHER, wait=False)
        assert other is not None
        folder.unlock_shard(OTHER, other)
        folder.unlock_shard(NAME, lock)
        again = folder.lock_shard(NAME, wait=False)
        assert again is not None
        folder.unlock_shard(NAME, again)
        assert names(folder) == []

    def test_the_folders_lock_excludes_and_needs_no_file(self, folder: CacheFolder) -> None:
        lock = folder.lock_room(wait=False)
        assert lock is not None
        assert folder.lock_room(wait=False) is None
        os.close(lock)
        again = folder.lock_room(wait=True)
        assert again is not None
        os.close(again)
        assert names(folder) == []

    def test_a_holder_shows_signs_of_life(self, folder: CacheFolder) -> None:
        assert folder.heartbeat(NAME) is None
        lock = folder.lock_shard(NAME, wait=False)
        assert lock is not None
        os.utime(lock, (1, 1))
        before = folder.heartbeat(NAME)
        assert folder.heartbeat(NAME) == before
        folder.drive.touch(lock)
        assert folder.heartbeat(NAME) != before
        folder.unlock_shard(NAME, lock)

    def test_a_lock_file_that_cannot_be_deleted_is_no_error(
        self, open_folder: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        class ReadOnly(Drive):
            def remove(self, name: str, *, folder: int) -> None:
                raise OSError(30, "Read-only file system")

        folder = open_folder(drive=ReadOnly())
        lock = folder.lock_shard(NAME, wait=False)
        assert lock is not None
        with caplog.at_level(logging.INFO):
            folder.unlock_shard(NAME, lock)
        assert "Read-only" in caplog.text

    def test_many_who_wait_get_the_lock_one_after_the_other(self, folder: CacheFolder) -> None:
        inside, most, rounds = 0, 0, 0
        guard = threading.Lock()

        def visit() -> None:
            nonlocal inside, most, rounds
            for _ in range(20):
                lock = folder.lock_shard(NAME, wait=True)
                assert lock is not None
                with guard:
                    inside, rounds = inside + 1, rounds + 1
                    most = max(most, inside)
                with guard:
                    inside -= 1
                folder.unlock_shard(NAME, lock)

        threads = [threading.Thread(target=visit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (most, rounds) == (1, 160)

    @pytest.mark.processes
    def test_a_lock_dies_with_its_process(self, folder: CacheFolder) -> None:
        script = (
            "import os, sys\n"
            "from concurrent_loader.storage.cache.folder import CacheFolder\n"
            "folder = CacheFolder(sys.argv[1])\n"
            "assert folder.lock_shard(sys.argv[2], wait=False) and folder.lock_room(wait=False)\n"
            "os.kill(os.getpid(), 9)\n"
        )
        died = subprocess.run([sys.executable, "-c", script, str(folder.root), NAME], check=False)
        assert died.returncode == -9
        lock = folder.lock_shard(NAME, wait=False)
        room = folder.lock_room(wait=False)
        assert lock is not None
        assert room is not None
        os.close(room)
        folder.unlock_shard(NAME, lock)

    @pytest.mark.processes
    def test_a_forked_child_keeps_no_lock(self, folder: CacheFolder) -> None:
        script = """
import os, sys
from concurrent_loader.storage.cache.folder import CacheFolder
folder = CacheFolder(sys.argv[1])
room, lock = folder.lock_room(wait=False), folder.lock_shard(sys.argv[2], wait=False)
reading, writing = os.pipe()
child = os.fork()
if not child:
    os.close(writing)
    os.read(reading, 1)
    os._exit(0)
folder.drive.close(room)
folder.unlock_shard(sys.argv[2], lock)
assert folder.lock_room(wait=False) and folder.lock_shard(sys.argv[2], wait=False)
os.close(writing)
os.waitpid(child, 0)
"""
        subprocess.run([sys.executable, "-c", script, str(folder.root), NAME], check=True)
