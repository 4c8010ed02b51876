"""Allocates memory that two processes share: unnamed files, in which a worker builds large tensors.

A file is reached through its descriptor alone. It disappears with the last process that holds or maps it, even if that
process is killed. On Linux the file is a memfd, which needs no space in ``/dev/shm``; containers keep that small. On
other systems it is a temporary file that is deleted before use.
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

LARGE_BYTES = 64 * 1024  # smaller tensors are copied: a mapping costs as much

_OPEN_FILES = "/proc/self/fd" if Path("/proc/self/fd").exists() else "/dev/fd"
_current = threading.local()  # `blocks`: the `SharedBlocks` that this thread has entered


def new_file(num_bytes: int = 0) -> int:
    """Creates an unnamed file of zeros and returns its descriptor. The caller closes it.

    Args:
        num_bytes: Size of the file, 0 by default.

    Raises:
        OSError: Memory, disk space or file descriptors have run out.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("batch", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        if num_bytes and hasattr(os, "posix_fallocate"):
            # Allocate all memory now. A shortage raises an error here; a later write to the mapping would get SIGBUS.
            os.posix_fallocate(fd, 0, num_bytes)
        elif num_bytes:
            os.ftruncate(fd, num_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_file(fd: int) -> torch.Tensor:
    """Maps a whole file as a (n,) uint8 tensor. The tensor keeps the memory alive, but no descriptor."""
    return torch.from_file(f"{_OPEN_FILES}/{fd}", shared=True, size=os.fstat(fd).st_size, dtype=torch.uint8)


class SharedBlocks:
    """Shared memory for the tensors of one batch.

    Inside its ``with`` block, the function `empty` allocates the thread's large tensors in files. `take` returns their
    descriptors.

    Thread-safety: One thread enters the block. All other methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._files: dict[int, int] = {}  # address of the memory → descriptor

    def __enter__(self) -> Self:
        _current.blocks = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.blocks = None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, num_bytes: int) -> torch.Tensor:
        """Returns an uninitialized tensor in its own file, or in memory of this process if it is small."""
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
        """Returns the descriptor of the file mapped at an address, and gives it up. The caller closes it.

        Args:
            address: Address of a tensor's memory.
            num_bytes: Size of the tensor.

        Returns:
            The descriptor; None if no file of this size is mapped there, or its descriptor has been taken.
        """
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
    """Returns an uninitialized tensor on the CPU; in shared memory while this thread makes a worker's batch."""
    blocks: SharedBlocks | None = getattr(_current, "blocks", None)
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if blocks is None:
        return torch.empty(shape, dtype=dtype)
    return blocks.empty(shape, dtype, num_bytes)
