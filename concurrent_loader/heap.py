"""What the process's heap does with memory that is given back: below everything that makes batches.

Batches of encoded pictures and pieces of transfers come and go in blocks of 50 KB to some MiB. glibc gives such memory
back to the system by default, and each page of it is mapped and cleared anew when the next batch wants it: a fifth of
the processor time of reading. It has a rule that adapts (mallopt(3), ``M_MMAP_THRESHOLD``): when a block is freed that
was mapped by itself, blocks up to its size come from the heap from then on, and twice as much stays there. So every
program that has freed one large tensor keeps up to 64 MiB a heap. This brings that about before the first batch instead
of at some time during training. Other allocators have no such rule, and nothing happens.
"""

from __future__ import annotations

import numpy as np

__all__ = ["keep_freed_memory"]

_LARGEST_BYTES = 31 << 20  # just below what glibc learns from: 32 MiB, its own header included
_learnt = False


def keep_freed_memory() -> None:
    """Has the heap keep what is freed, up to a bound of its own; takes no memory. Called when a data set is opened."""
    global _learnt
    if not _learnt:
        _learnt = True
        np.empty(_LARGEST_BYTES, np.uint8)  # freed at once, and never touched
