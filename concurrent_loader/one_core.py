"""Beside the threads that decode and fetch: each of them is one processor's worth of work, also inside torch.

Torch's operators on the CPU share their work with a team of threads, and every thread that calls them gets a team of
its own: N decode threads on N cores would be N² threads, which wait for each other by spinning. `torch.set_num_threads`
cannot end that for some threads alone, as it speaks for the process.
"""

from __future__ import annotations

import functools
import logging

import torch
from threadpoolctl import ThreadpoolController

__all__ = ["keep_to_one_core"]

_log = logging.getLogger(__name__)


def keep_to_one_core() -> None:
    """Has torch's operators use the calling thread alone, as long as it lives; other threads keep what they have.

    After a `torch.set_num_threads` of the user's, what torch leaves to MKL (matrix products, `sin` and its like) still
    has that many: MKL keeps a number for the process, too.

    Where the process has no descriptor left to look its libraries up, that is logged, and this thread keeps its team:
    it works more slowly, but it works.
    """
    torch.get_num_threads()  # torch sets a thread's number when it is first asked for, and must not do so after us
    try:
        controller = _controller()
    except OSError as error:
        _log.warning("cannot look up the libraries of this process (%s): a thread shares work with others", error)
        return
    # OpenMP keeps the number by thread (omp_set_num_threads).
    controller.limit(limits=1, user_api="openmp")


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
