"""Where a side is measured: a process of its own, with no client, connection or memory left from the one before.

With ``preload`` it begins as a fork of a server process that has only imported what is needed (`multiprocessing`'s
forkserver), so it is there in milliseconds, and no runtime of the parent's (obstore's would hang) is in it. Without, it
is a new interpreter, whose memory is its own from the beginning.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

_END_S = 30.0  # a process that does not end by then after its answer has hung

Result = TypeVar("Result")

_cpu_s = 0.0  # of all that have answered


def in_fresh_process(
    measure: Callable[..., Result],
    arguments: Sequence[Any],
    *,
    what: str,
    preload: Sequence[str] = (),
    timeout_s: float,
) -> Result:
    """Calls a function of a module in a process of its own; both it and its result must pickle."""
    forkserver, spawn = multiprocessing.get_context("forkserver"), multiprocessing.get_context("spawn")
    # OpenMP's threads would spin while they wait, and take cores from those that decode.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    forkserver.set_forkserver_preload(list(preload))
    receiving, sending = multiprocessing.Pipe(duplex=False)
    make = forkserver.Process if preload else spawn.Process
    process = make(target=_run, args=(sending, measure, tuple(arguments)))
    process.start()
    sending.close()
    try:
        if not receiving.poll(timeout_s):
            raise TimeoutError(f"{what}: nothing after {timeout_s:.0f} s")
        answer: Result
        answer, used_s = receiving.recv()
        process.join(_END_S)
    except EOFError:
        raise RuntimeError(f"{what}: the measurement failed, see above") from None
    finally:
        receiving.close()
        process.kill()
        process.join()
    global _cpu_s
    _cpu_s += used_s
    return answer


def cpu_of_fresh_processes_s() -> float:
    """Returns the processor seconds of all of them so far: the server's children are not this process's."""
    return _cpu_s


def _run(answer: Connection, measure: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler would unwind it
    result = measure(*arguments)
    answer.send((result, cpu_s()))


def cpu_s() -> float:
    """Returns the processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)  # `os.times` counts ticks of 10 ms
