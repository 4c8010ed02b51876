"""Keeps torch's operations on the decode thread that calls them: there are threads enough.

An operation on more than 32,768 elements is otherwise divided among all cores, by a team of threads that each calling
thread gets for itself: 16 decode threads on 16 cores would be 256. A picture of 224 x 224 has 150,528.
"""

from __future__ import annotations

import threading

import torch

__all__ = ["stay_on_this_thread"]

_lock = threading.Lock()


def stay_on_this_thread() -> None:
    """Has the calling thread, which must be a new one, compute alone from now on.

    torch's number of threads belongs to a thread, but setting it also sets what new threads begin with. That is put
    back at once, by a thread that ends, so that all others are as before.

    Thread-safety: Yes; a thread that somebody else starts in this very moment could begin with one.
    """
    with _lock:
        usual = torch.get_num_threads()
        torch.set_num_threads(1)
        restoring = threading.Thread(target=torch.set_num_threads, args=(usual,))
        restoring.start()
        restoring.join()
