"""What `test_worker_lives` runs in a process of its own: a loader with workers, to be killed or interrupted.

Usage: python workers_program.py SCENARIO URL METHOD

It prints the workers' process ids when they are at work, and then waits.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading

import worker_recipes as recipes

from concurrent_loader import ConcurrentDataLoader, ShardDataset


def main(scenario: str, url: str, method: str) -> None:
    dataset = ShardDataset(url)
    loader = ConcurrentDataLoader(
        dataset,
        16,
        num_workers=2,
        transform=recipes.never_return if scenario in ("stuck", "interrupt") else recipes.keep,
        multiprocessing_context=method,
        persistent_workers=scenario == "exit",
        slow_batch_warning_s=None,  # standard error is to be silent, however busy the machine
    )
    iteration = loader._batches(0, 0)
    if scenario == "exit":
        assert len(list(loader)) == 13
    else:
        iteration.start()
    print("ready", *(child.pid for child in multiprocessing.active_children()), flush=True)
    if scenario == "exit":
        return  # with idle workers, and without closing anything
    if scenario == "fork" and os.fork() == 0:
        threading.Event().wait()  # it holds copies of all descriptors
    try:
        for _ in range(1 if scenario in ("killed", "fork") else 2):
            iteration.take()
        print("at work", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        iteration.stop()
        dataset.close()
        assert multiprocessing.active_children() == []
        print("interrupted", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
