"""How iterations, loaders and data sets end when nobody closes them: with the process, or by the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.datasets import base
from concurrent_loader.storage import ShardWriter

EXIT_S = 10.0  # two seconds on an idle machine; what was wrong took 50 and more
SOON_S = 20.0

NATIVE = """
    dataset = ShardDataset(sys.argv[1], client="fsspec", cache_dir=sys.argv[2])
    loader = ConcurrentDataLoader(dataset, 8, num_workers={num_workers}, prefetch_bytes="8KiB")
"""
DROP_IN = """
    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, number):
            return torch.tensor(number)

    context = "fork" if {num_workers} else None  # the usual one before Python 3.14: the class is defined below a guard
    loader = ConcurrentDataLoader(
        Numbers(), batch_size=8, num_workers={num_workers}, multiprocessing_context=context
    )
"""
HELD = """
    batches = iter(loader)
    next(batches)
"""
RAISED = """
    def iterate():
        batches = iter(loader)
        next(batches)
        raise ValueError("mine")

    try:
        iterate()
    except ValueError as error:
        kept = error
"""
PROGRAM = """
    import sys
    import time

    import torch

    from concurrent_loader import ConcurrentDataLoader, ShardDataset
    {loader}
    {iterating}
    print(time.monotonic(), flush=True)
"""


def write(url: str) -> None:
    with ShardWriter(url, columns={"label": "int64", "data": "bytes"}, shard_size="4KiB") as writer:
        for number in range(400):
            writer.write({"label": number, "data": bytes(200)})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("loader", "num_workers", "iterating"),
    [(NATIVE, 0, HELD), (NATIVE, 0, RAISED), (NATIVE, 2, HELD), (DROP_IN, 0, HELD), (DROP_IN, 2, HELD)],
    ids=["native", "native raised", "native workers", "drop-in", "drop-in workers"],
)
def test_an_iterator_that_nobody_ended_keeps_no_process_from_ending(
    tmp_path: Path, loader: str, num_workers: int, iterating: str
) -> None:
    write(str(tmp_path / "dataset"))
    loading = textwrap.dedent(loader).format(num_workers=num_workers)
    lines = textwrap.dedent(PROGRAM).format(loader=loading, iterating=textwrap.dedent(iterating))
    program = tmp_path / "program.py"
    program.write_text(f"if __name__ == '__main__':\n{textwrap.indent(lines, '    ')}")
    done = subprocess.run(
        [sys.executable, program, tmp_path / "dataset", tmp_path / "cache"],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    ended_s = time.monotonic()
    assert (done.returncode, done.stderr) == (0, "")
    assert ended_s - float(done.stdout) < EXIT_S


IN_EACH_PROCESS = """
    import atexit
    import os
    import sys

    class TornDown:
        def __del__(self, write=os.write, pid=os.getpid()):
            write(2, b"%d torn down\\n" % pid)

    sys.torn_down = TornDown()
    atexit.register(lambda: os.write(2, b"%d exits\\n" % os.getpid()))
"""
SERVED = """
    import os
    import sys
    from multiprocessing import forkserver

    from concurrent_loader import ConcurrentDataLoader, ShardDataset

    if __name__ == "__main__":
        dataset = ShardDataset(sys.argv[1], client="fsspec", cache_dir=sys.argv[2])
        next(iter(ConcurrentDataLoader(dataset, 8, num_workers=1)))
        print(os.getpid(), forkserver._forkserver._forkserver_pid)
"""


@pytest.mark.processes
def test_the_fork_server_exits_without_the_teardown_of_the_interpreter(tmp_path: Path) -> None:
    write(str(tmp_path / "dataset"))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(SERVED))
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(IN_EACH_PROCESS))
    done = subprocess.run(
        [sys.executable, program, tmp_path / "dataset", tmp_path / "cache"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *filter(None, sys.path)))},
        capture_output=True, text=True, timeout=110, check=True,
    )  # fmt: skip
    main, server = done.stdout.split()
    said = [line.split(" ", 1) for line in done.stderr.splitlines()]
    assert [what for pid, what in said if pid == main] == ["exits", "torn down"]
    assert [what for pid, what in said if pid == server] == ["exits"]


def wait_until(done: Callable[[], bool]) -> None:
    """Waits for what another thread does; the threads that end are what is waited for, so there is no event."""
    deadline_s = time.monotonic() + SOON_S
    pause = threading.Event()
    while not done():
        assert time.monotonic() < deadline_s, threading.enumerate()
        pause.wait(0.005)


def own_threads() -> set[str]:
    return {thread.name.partition("_")[0] for thread in threading.enumerate()} & {
        "decode",
        "dataset-loop",
        "loader-stop",
        "dataset-close",
    }


def collect_on(dataset: ShardDataset, where: str) -> None:
    """Runs the garbage collector on one of the package's threads."""
    if where == "loop":

        async def collect() -> None:
            gc.collect()

        dataset.loop.run(collect())
    else:
        collected = threading.Event()

        def transform(sample: dict[str, Any]) -> dict[str, Any]:
            if not collected.is_set():
                collected.set()
                gc.collect()
            return sample

        for _ in ConcurrentDataLoader(dataset, 8, transform=transform, num_threads=1):
            pass


@pytest.mark.processes
@pytest.mark.parametrize("where", ["loop", "decode thread"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_iterator_that_is_collected_on_a_thread_of_ours_ends(
    tmp_path: Path, where: str, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(str(tmp_path))
    with ShardDataset(str(tmp_path)) as dataset:
        collected_elsewhere(dataset, where, num_workers, monkeypatch)


def collected_elsewhere(dataset: ShardDataset, where: str, num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[Any] = []  # of destroyed tasks
    dataset.loop.run(note_complaints(complaints))
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    dataset[0]
    descriptors = len(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        batches = iter(ConcurrentDataLoader(dataset, 8, num_workers=num_workers))
        next(batches)
        cycle: list[Any] = [batches]
        cycle.append(cycle)
        del batches, cycle
        collect_on(dataset, where)
    finally:
        gc.enable()
    wait_until(lambda: own_threads() <= {"dataset-loop"} and len(os.listdir("/proc/self/fd")) <= descriptors)
    assert not unraisable
    assert not complaints


def test_a_data_set_that_is_collected_on_its_own_loop_is_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    descriptors = len(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        dataset = ShardDataset(url)
        dataset[0]
        loop = dataset.loop
        cycle: list[Any] = [dataset]
        cycle.append(cycle)
        del dataset, cycle

        async def collect() -> None:
            gc.collect()

        loop.submit(collect())
    finally:
        gc.enable()
    wait_until(lambda: not own_threads() and len(os.listdir("/proc/self/fd")) <= descriptors)
    assert not unraisable


def test_closing_a_data_set_whose_loop_computes_takes_no_longer_than_its_bound(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(base, "_CLOSE_S", 0.05)
    go, computing = threading.Event(), threading.Event()

    async def compute() -> None:
        computing.set()
        go.wait()

    dataset = ShardDataset(url)
    dataset[0]
    dataset.loop.submit(compute())
    assert computing.wait(SOON_S)
    dataset.close()
    assert own_threads() == {"dataset-loop"}
    assert "its thread is abandoned" in caplog.text
    go.set()
    wait_until(lambda: not own_threads())


async def note_complaints(complaints: list[Any]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))


async def nothing() -> None:
    await asyncio.sleep(0)


@pytest.mark.slow
def test_loaders_that_are_left_in_the_middle_take_no_more_and_more_memory(url: str) -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with ShardDataset(url) as dataset:

        def leave(num_loaders: int) -> None:
            for _ in range(num_loaders):
                next(iter(ConcurrentDataLoader(dataset, 8, shuffle=True, num_threads=2)))

        leave(100)
        dataset.loop.run(nothing())
        gc.collect()
        before, num_objects = resident_bytes(), len(gc.get_objects())
        leave(100)
        dataset.loop.run(nothing())
        gc.collect()
        assert len(gc.get_objects()) - num_objects < 200  # two for each that is left would be one too many
        assert resident_bytes() - before < 32 * 1024 * 1024
