from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from concurrent_loader.doctor.finding import Level
from concurrent_loader.doctor.machine import (
    Drive,
    check_descriptors,
    check_drive,
    check_start_method,
    find_drive,
    measure_writing,
    num_cores,
    open_files_limit,
    start_method,
)

GIB = 1 << 30
NVME = Drive(Path("/nvme"), "xfs", rotates=False, free_bytes=400 * GIB, total_bytes=500 * GIB)


class TestDrive:
    def test_good(self) -> None:
        finding = check_drive(NVME, write_bytes_s=1.5e9, wanted_bytes=200 * GIB)
        assert finding.level is Level.OK
        assert finding.facts["write_bytes_s"] == 1_500_000_000

    @pytest.mark.parametrize(
        ("drive", "write_bytes_s", "word"),
        [
            (replace(NVME, kind="tmpfs"), 3e9, "memory"),
            (replace(NVME, kind="nfs4"), 5e8, "network"),
            (replace(NVME, rotates=True), 1.8e8, "hard disks"),
            (replace(NVME, free_bytes=5 * GIB), 1e9, "10 GiB"),
            (NVME, 1e8, "first epoch"),
        ],
    )
    def test_slow_or_small(self, drive: Drive, write_bytes_s: float, word: str) -> None:
        finding = check_drive(drive, write_bytes_s=write_bytes_s, wanted_bytes=None)
        assert finding.level is Level.WARN
        assert word in finding.advice

    def test_a_virtual_drive_that_only_claims_to_turn(self) -> None:
        assert check_drive(replace(NVME, rotates=True), write_bytes_s=1e9, wanted_bytes=None).level is Level.OK

    def test_less_than_the_budget(self) -> None:
        finding = check_drive(NVME, write_bytes_s=1e9, wanted_bytes=401 * GIB)
        assert finding.level is Level.WARN
        assert "cache_bytes" in finding.advice

    def test_not_writable(self) -> None:
        assert check_drive(NVME, write_bytes_s=None, wanted_bytes=None).level is Level.FAIL

    def test_a_folder_that_is_not_there_yet(self, tmp_path: Path) -> None:
        drive = find_drive(tmp_path / "a" / "b")
        assert drive.folder == tmp_path
        assert 0 < drive.free_bytes <= drive.total_bytes
        assert drive.kind
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("mounts", "kind"),
        [
            ("/dev/a / ext4 rw 0 0\n/dev/b {parent} xfs rw 0 0\n", "xfs"),
            ("/dev/b {parent} xfs rw 0 0\n/dev/a / ext4 rw 0 0\n", "xfs"),
            ("/dev/a {here} ext4 rw 0 0\n/dev/b {here} tmpfs rw 0 0\n", "tmpfs"),
            ("/dev/a / ext4 rw 0 0\n/dev/b {here}-other xfs rw 0 0\n", "ext4"),
            ("garbage\n", ""),
        ],
    )
    def test_the_nearest_mount_counts(self, tmp_path: Path, mounts: str, kind: str) -> None:
        text = mounts.format(here=tmp_path, parent=tmp_path.parent)
        assert find_drive(tmp_path, mounts=text).kind == kind

    def test_writing_leaves_nothing(self, tmp_path: Path) -> None:
        ticks = iter([10.0, 12.0])
        assert measure_writing(tmp_path, num_bytes=4 << 20, clock=lambda: next(ticks)) == 2 << 20
        assert list(tmp_path.iterdir()) == []

    def test_writing_where_there_is_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(OSError):
            measure_writing(tmp_path / "missing", num_bytes=1)


@pytest.mark.parametrize(
    ("limit", "level"), [(None, Level.OK), (65536, Level.OK), (1024, Level.WARN), (100, Level.FAIL)]
)
def test_descriptors(limit: int | None, level: Level) -> None:
    assert check_descriptors(limit).level is level


def test_this_machine() -> None:
    assert check_descriptors(open_files_limit()).name == "descriptors"
    assert check_start_method(start_method()).facts["start_method"] in {"fork", "forkserver", "spawn"}
    assert check_start_method("fork").message != check_start_method("spawn").message
    assert 1 <= num_cores() <= (os.cpu_count() or 1)
