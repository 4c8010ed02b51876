"""What the tests give to worker processes: a worker finds these by importing this module."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data

from concurrent_loader.storage.shards.format.small_column import SmallColumn

Sample = dict[str, Any]


def keep(sample: Sample) -> Sample:
    return sample


def enlarge(sample: Sample) -> Sample:
    """Adds a tensor that is large enough, in a batch, to lie in memory of its own, and one that is not."""
    label = int(sample["label"])
    picture = torch.full((3, 40, 50), label % 256, dtype=torch.uint8)
    return {
        **sample,
        "picture": picture,
        "array": np.arange(6.0) + label,
        "flag": label % 2 == 0,
        "more": {"a": [label]},
    }


def describe(samples: list[Sample]) -> tuple[Any, ...]:
    """A batch of a kind of its own."""
    labels = torch.tensor([int(sample["label"]) for sample in samples])
    return (
        labels,
        {"twice": labels * 2, "array": np.ones((200, 100))},
        [sample["name"] for sample in samples],
        os.getpid(),
    )


def draw(sample: Sample) -> Sample:
    return {"label": sample["label"], "drawn": [random.random(), float(np.random.rand()), float(torch.rand(()))]}


def draw_for_batch(samples: list[Sample]) -> tuple[list[int], float]:
    return [int(sample["label"]) for sample in samples], random.random()


def fail_at_77(sample: Sample) -> Sample:
    if int(sample["label"]) == 77:
        raise ValueError("seventy-seven")
    return sample


class Odd(Exception):
    """Does not come back from a pickle."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"{number}: {reason}")


def fail_oddly(samples: list[Sample]) -> list[Sample]:
    raise Odd(3, "so it is")


def unpicklable(samples: list[Sample]) -> Any:
    return threading.Lock()


class DieAt:
    """Ends its process when it meets a sample."""

    def __init__(self, number: int, how: int | None) -> None:
        self.number = number
        self.how = how

    def __call__(self, sample: Sample) -> Sample:
        if int(sample["label"]) == self.number:
            if self.how is None:
                os._exit(7)
            os.kill(os.getpid(), self.how)
            threading.Event().wait()  # the signal befalls another thread, at any moment
        return sample


class Touch:
    """Leaves a file named after the process that meets a sample."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, sample: Sample) -> Sample:
        (self.folder / str(os.getpid())).touch()
        return sample


def never_return(sample: Sample) -> Sample:
    """Says that it has begun."""
    os.write(1, b"at work\n")  # in one piece: two workers say it at once
    threading.Event().wait()
    return sample


class NeverReturn:
    """Tells it to whoever reads from a pipe in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, sample: Sample) -> Sample:
        (self.folder / "at work").write_text("at work")
        threading.Event().wait()
        return sample


def compute(sample: Sample) -> Sample:
    """Takes some milliseconds, in pure Python."""
    return {"label": sample["label"], "sum": sum(number * number for number in range(40_000))}


class Begin:
    """A worker_init_fn that leaves a file, or fails."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def __call__(self, worker: int) -> None:
        if self.folder is None:
            raise RuntimeError(f"worker {worker} does not want to")
        (self.folder / f"worker-{worker}").touch()


def closure() -> Callable[[Sample], Sample]:
    return lambda sample: sample


def fails_in_workers(epoch: int) -> Any:
    if multiprocessing.parent_process() is not None:
        raise RuntimeError("no weights here")
    return np.ones(60)


def local_sampler() -> torch.utils.data.Sampler[int]:
    class First(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([0])

    return First()


class Holding:
    """Is pickled as well as what it holds."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __call__(self, sample: Sample) -> Sample:
        return sample


class NotHere:
    """Is pickled in one process and refuses to be unpickled in another."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["pid"] != os.getpid():
            raise AttributeError("there is no such thing here")

    def __call__(self, sample: Sample) -> Sample:
        return sample


_num_decoded = 0


def count_decoded(worker: int) -> None:
    """Counts the values of str and json columns that this process decodes."""
    encoded = SmallColumn.encoded

    def counted(self: SmallColumn, rows: Any) -> Any:
        global _num_decoded
        _num_decoded += len(rows)
        return encoded(self, rows)

    SmallColumn.encoded = counted  # type: ignore[method-assign]


def with_num_decoded(samples: list[Sample]) -> tuple[int, int]:
    return len(samples), _num_decoded
