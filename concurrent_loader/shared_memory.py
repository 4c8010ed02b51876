"""Memory that two processes can see: files without a name, in which a worker puts large tensors together.

A file is reached through its descriptor alone, so nothing of it outlives the last process that holds or maps it,
whatever ends that process. On Linux it is a memfd: it needs no room in ``/dev/shm``, which containers keep small.
Elsewhere it is a temporary file that is deleted before it is used.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

__all__ = ["LARGE_BYTES", "SharedBlocks", "empty", "map_file", "new_file"]

LARGE_BYTES = 64 * 1024  # what is smaller is copied: a mapping of its own costs as much

_OPEN_FILES = "/proc/self/fd" if Path("/proc/self/fd").exists() else "/dev/fd"
_making = threading.local()


def new_file(num_bytes: int = 0) -> int:
    """Makes a file of so many zero bytes, without a name, and returns its descriptor, which is the caller's to close.

    Raises:
        OSError: No memory, no room, or no descriptors are left.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("batch", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        if num_bytes and hasattr(os, "posix_fallocate"):
            # All of it now: where memory is short this is an error, and a write to the mapping would be a signal.
            os.posix_fallocate(fd, 0, num_bytes)
        elif num_bytes:
            os.ftruncate(fd, num_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_file(fd: int) -> torch.Tensor:
    """Maps a whole file: a (n,) uint8 tensor that keeps the memory, and no descriptor, for as long as it lives."""
    return torch.from_file(f"{_OPEN_FILES}/{fd}", shared=True, size=os.fstat(fd).st_size, dtype=torch.uint8)


class SharedBlocks:
    """While it is entered, `empty` gives large tensors of this thread memory in files, which `take` hands out.

    Thread-safety: one thread enters it; all other methods are safe. It is made for one batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._files: dict[int, int] = {}  # address of the memory → descriptor

    def __enter__(self) -> Self:
        _making.blocks = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _making.blocks = None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, num_bytes: int) -> torch.Tensor:
        """Returns a tensor in a file of its own, or in memory of this process if it is small."""
        if num_bytes < LARGE_BYTES:
            return torch.empty(shape, dtype=dtype)
        fd = new_file(num_bytes)
        try:
            block = map_file(fd)
        except BaseException:
            os.close(fd)
            raise
        with self._lock:
            if self._closed:
                os.close(fd)
            else:
                self._files[block.data_ptr()] = fd
        return block.view(dtype).view(shape)

    def take(self, address: int, num_bytes: int) -> int | None:
        """Returns the descriptor of the file that is mapped there, once, if it has this size; the caller closes it."""
        with self._lock:
            fd = self._files.get(address)
            if fd is None or os.fstat(fd).st_size != num_bytes:
                return None
            return self._files.pop(address)

    def close(self) -> None:
        """Closes the descriptors that were not taken. Idempotent."""
        with self._lock:
            self._closed = True
            while self._files:
                os.close(self._files.popitem()[1])


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns an uninitialised tensor (*shape) on the CPU; in shared memory where a worker is making a batch."""
    blocks: SharedBlocks | None = getattr(_making, "blocks", None)
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if blocks is None:
        return torch.empty(shape, dtype=dtype)
    return blocks.empty(shape, dtype, num_bytes)
