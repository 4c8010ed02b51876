"""This machine: the drive under the cache, open files, how worker processes start, and what decodes."""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from concurrent_loader.doctor.finding import Finding, Level
from storage.sizes import format_size

__all__ = [
    "Drive",
    "find_drive",
    "judge_descriptors",
    "judge_drive",
    "judge_start_method",
    "measure_writing",
    "num_cores",
    "open_files_limit",
    "start_method",
]

_SLOW_BYTES_S = 200e6
# Faster than any disc that turns: virtual machines show their SSDs as such discs.
_FAST_BYTES_S = 400e6
_LITTLE_BYTES = 10 << 30
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "fuse.sshfs", "9p", "fuse.s3fs", "fuse.mount-s3"})
# The loader's own needs at 256 requests in flight, shards and sockets of workers included.
_MANY_FILES = 4096
_FEW_FILES = 256
_BLOCK = bytes(1 << 20)


@dataclass(frozen=True, slots=True)
class Drive:
    """What a folder lies on.

    Attributes:
        folder: The nearest existing folder of the cache's path.
        kind: Of file system, as mounts name it; empty if unknown.
        rotates: Whether the drive has turning discs; None if unknown.
        free_bytes: That this user may take.
        total_bytes: In all.
    """

    folder: Path
    kind: str
    rotates: bool | None
    free_bytes: int
    total_bytes: int


def find_drive(cache_dir: Path, *, mounts: str | None = None) -> Drive:
    """Looks up what is under a folder, which need not exist yet.

    Args:
        cache_dir: The folder.
        mounts: Text in the form of ``/proc/mounts``; that itself if None.

    Raises:
        OSError: The folder's nearest existing parent cannot be looked at.
    """
    folder = cache_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    space = os.statvfs(folder)
    return Drive(
        folder,
        _kind_of(folder, mounts),
        _rotates(folder),
        space.f_bavail * space.f_frsize,
        space.f_blocks * space.f_frsize,
    )


def measure_writing(folder: Path, *, num_bytes: int, clock: Callable[[], float] = time.monotonic) -> float:
    """Writes a file without a name that is gone afterwards, down to the drive; returns bytes a second.

    Raises:
        OSError: The folder cannot be written to, or the drive is full.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        begun = clock()
        for _ in range(max(1, num_bytes // len(_BLOCK))):
            file.write(_BLOCK)
        os.fdatasync(file.fileno())
        seconds = clock() - begun
    return max(1, num_bytes // len(_BLOCK)) * len(_BLOCK) / max(seconds, 1e-9)


def judge_drive(drive: Drive, *, write_bytes_s: float | None, wanted_bytes: int | None) -> Finding:
    """Judges a cache's drive.

    Args:
        drive: What it is.
        write_bytes_s: As measured; None where nothing could be written.
        wanted_bytes: The budget that the cache is to have, if that is known.
    """
    facts = {
        "kind": drive.kind,
        "rotates": drive.rotates,
        "free_bytes": drive.free_bytes,
        "total_bytes": drive.total_bytes,
        "write_bytes_s": None if write_bytes_s is None else round(write_bytes_s),
    }
    name = "cache disk"
    if write_bytes_s is None:
        return Finding(
            name,
            Level.FAIL,
            f"{drive.folder} cannot be written to",
            "give the training user a folder of its own",
            facts,
        )
    said = (
        f"{drive.kind or 'an unknown file system'}, {format_size(drive.free_bytes)} free of "
        f"{format_size(drive.total_bytes)}, writes {format_size(round(write_bytes_s))}/s"
    )
    if wanted_bytes is not None and wanted_bytes > drive.free_bytes:
        return Finding(
            name, Level.WARN, f"{said}, less than the cache may take", "lower cache_bytes, or make room", facts
        )
    for troubled, advice in (
        (drive.kind in _IN_MEMORY, "this is memory, not a drive: name a folder on the local NVMe"),
        (drive.kind in _REMOTE, "this is itself over the network: name a folder on the local NVMe"),
        (
            bool(drive.rotates) and write_bytes_s < _FAST_BYTES_S,
            "discs that turn are slow at many small reads: name a folder on an SSD",
        ),
        (drive.free_bytes < _LITTLE_BYTES, "a cache of less than 10 GiB will seldom be worth it: make room"),
        (write_bytes_s < _SLOW_BYTES_S, "the first epoch waits for it: name a folder on the local NVMe"),
    ):
        if troubled:
            return Finding(name, Level.WARN, said, advice, facts)
    return Finding(name, Level.OK, said, facts=facts)


def open_files_limit() -> int | None:
    """How many files this process may open; None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def judge_descriptors(limit: int | None) -> Finding:
    """Judges how many files may be open."""
    if limit is None:
        return Finding("descriptors", Level.OK, "as many open files as wanted", facts={"limit": None})
    facts, said, advice = {"limit": limit}, f"{limit:,} open files", f"ulimit -n {_MANY_FILES * 16}"
    if limit < _FEW_FILES:
        return Finding("descriptors", Level.FAIL, said, advice, facts)
    if limit < _MANY_FILES:
        return Finding("descriptors", Level.WARN, f"{said}, so that fewer requests are in flight", advice, facts)
    return Finding("descriptors", Level.OK, said, facts=facts)


def start_method() -> str:
    """How `multiprocessing` starts processes here if nobody says otherwise."""
    # Asking without allow_none would fix the answer for the rest of the process.
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def judge_start_method(method: str) -> Finding:
    """Judges whether worker processes come to life with clients that work."""
    said = f"processes start by {method}"
    if method == "fork":
        said = "processes fork by default; the loader's workers do not, and a forked data set opens its store anew"
    return Finding("fork safety", Level.OK, said, facts={"start_method": method})


def num_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _kind_of(folder: Path, mounts: str | None) -> str:
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text()
        except OSError:
            return ""  # not Linux
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        place = Path(fields[1].replace("\\040", " "))
        # Of two mounts in one place the later one is on top.
        if folder.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), fields[2]
    return kind


def _rotates(folder: Path) -> bool | None:
    device = folder.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for place in (block / "queue", block.resolve().parent / "queue"):  # a partition has no queue of its own
        try:
            return (place / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return None
