"""Checks this machine: the drive of the cache, the limit of open files, and how processes start."""

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
from concurrent_loader.storage.sizes import format_size

__all__ = [
    "Drive",
    "check_descriptors",
    "check_drive",
    "check_start_method",
    "find_drive",
    "measure_writing",
    "num_cores",
    "open_files_limit",
    "start_method",
]

_SLOW_BYTES_S = 200e6
# Faster than any hard disk: virtual machines report their SSDs as hard disks.
_FAST_BYTES_S = 400e6
_LITTLE_BYTES = 10 << 30
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "fuse.sshfs", "9p", "fuse.s3fs", "fuse.mount-s3"})
# Needed at 256 requests in flight, including shards and sockets of workers.
_MANY_FILES = 4096
_FEW_FILES = 256
_BLOCK = bytes(1 << 20)


@dataclass(frozen=True, slots=True)
class Drive:
    """Describes the file system of a folder.

    Attributes:
        folder: Nearest existing folder on the path of the cache.
        kind: File system type, as in the mount table; empty if unknown.
        rotates: Whether the drive is a hard disk; None if unknown.
        free_bytes: Space that this user may use, in bytes.
        total_bytes: Total space in bytes.
    """

    folder: Path
    kind: str
    rotates: bool | None
    free_bytes: int
    total_bytes: int


def find_drive(cache_dir: Path, *, mounts: str | None = None) -> Drive:
    """Finds the file system of a folder, which may not exist yet.

    Args:
        cache_dir: Folder of the cache.
        mounts: Text in the format of ``/proc/mounts``; None reads ``/proc/mounts``.

    Raises:
        OSError: The nearest existing parent folder cannot be read.
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
    """Writes an unnamed temporary file and flushes it to the drive; returns bytes per second.

    Raises:
        OSError: The folder is not writable, or the drive is full.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        begun = clock()
        for _ in range(max(1, num_bytes // len(_BLOCK))):
            file.write(_BLOCK)
        os.fdatasync(file.fileno())
        seconds = clock() - begun
    return max(1, num_bytes // len(_BLOCK)) * len(_BLOCK) / max(seconds, 1e-9)


def check_drive(drive: Drive, *, write_bytes_s: float | None, wanted_bytes: int | None) -> Finding:
    """Checks the drive of a cache.

    Args:
        drive: File system of the cache.
        write_bytes_s: Measured write rate in bytes per second; None if writing failed.
        wanted_bytes: Budget of the cache in bytes; None if unknown.
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
            f"{drive.folder} is not writable",
            "use a folder that the training user owns",
            facts,
        )
    message = (
        f"{drive.kind or 'an unknown file system'}, {format_size(drive.free_bytes)} free of "
        f"{format_size(drive.total_bytes)}, writes {format_size(round(write_bytes_s))}/s"
    )
    if wanted_bytes is not None and wanted_bytes > drive.free_bytes:
        return Finding(
            name, Level.WARN, f"{message}, less than the budget of the cache", "lower cache_bytes, or free space", facts
        )
    for applies, advice in (
        (drive.kind in _IN_MEMORY, "use a folder on a local NVMe drive: this file system is in memory"),
        (drive.kind in _REMOTE, "use a folder on a local NVMe drive: this file system is on the network"),
        (
            bool(drive.rotates) and write_bytes_s < _FAST_BYTES_S,
            "use a folder on an SSD: hard disks are slow at many small reads",
        ),
        (drive.free_bytes < _LITTLE_BYTES, "free space: a cache of less than 10 GiB rarely helps"),
        (write_bytes_s < _SLOW_BYTES_S, "use a folder on a local NVMe drive: the first epoch waits for this drive"),
    ):
        if applies:
            return Finding(name, Level.WARN, message, advice, facts)
    return Finding(name, Level.OK, message, facts=facts)


def open_files_limit() -> int | None:
    """Returns the maximum number of open files of this process; None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def check_descriptors(limit: int | None) -> Finding:
    """Checks the maximum number of open files."""
    if limit is None:
        return Finding("descriptors", Level.OK, "unlimited open files", facts={"limit": None})
    facts, message, advice = {"limit": limit}, f"at most {limit:,} open files", f"run `ulimit -n {_MANY_FILES * 16}`"
    if limit < _FEW_FILES:
        return Finding("descriptors", Level.FAIL, message, advice, facts)
    if limit < _MANY_FILES:
        return Finding("descriptors", Level.WARN, f"{message}, which limits the requests in flight", advice, facts)
    return Finding("descriptors", Level.OK, message, facts=facts)


def start_method() -> str:
    """Returns the default start method of `multiprocessing`."""
    # Without allow_none the call would fix the method for the rest of the process.
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def check_start_method(method: str) -> Finding:
    """Checks whether worker processes start with working clients."""
    message = f"processes start with {method}"
    if method == "fork":
        message = "processes start with fork; the loader's workers do not, and a forked dataset reopens its store"
    return Finding("fork safety", Level.OK, message, facts={"start_method": method})


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
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
        # The later of two mounts at the same path is on top.
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
