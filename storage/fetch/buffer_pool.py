"""Memory for large ranges, used again as soon as nobody refers to a range any more.

Ranges that are not written to a file arrive in memory. With new memory for each range, the kernel clears every page
again, and the allocator keeps what is freed: an epoch without a cache added 730 MB of resident memory for 400 MB of
open shards. Buffers that are used again are cleared once.
"""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress

import numpy as np

__all__ = ["BUFFER_BYTES", "BufferPool"]

BUFFER_BYTES = 8 << 20  # one transfer chunk
_MAX_FREE = 8  # buffers kept without a user


class BufferPool:
    """Buffers of `BUFFER_BYTES`, for ranges between half of that size and the whole.

    Thread-safety: All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def take(self, num_bytes: int) -> memoryview:
        """Returns writable memory with any content, of its own as long as a view of it exists.

        Args:
            num_bytes: Length of the memory. Other lengths than those of the pool get memory that is used once.

        Raises:
            MemoryError: There is not enough memory.
        """
        if not BUFFER_BYTES // 2 < num_bytes <= BUFFER_BYTES:
            return np.empty(num_bytes, np.uint8).data
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = _new_buffer()
        # Every view of the memory refers to this array, so the buffer is free when the array is.
        lease = np.frombuffer(buffer, np.uint8, num_bytes)
        weakref.finalize(lease, _give_back, self._free, buffer).atexit = False
        return lease.data


def _new_buffer() -> mmap.mmap:
    try:
        buffer = mmap.mmap(-1, BUFFER_BYTES)
    except OSError as error:
        raise MemoryError(*error.args) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def _give_back(free: list[mmap.mmap], buffer: mmap.mmap) -> None:
    if len(free) < _MAX_FREE:
        free.append(buffer)
