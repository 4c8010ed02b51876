"""Torch datasets whose items compute or lie in memory, and the pace of both loaders over them.

Nothing here waits for a network, so that a loader can only lose: what is measured is that ours does not.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.fresh_process import cpu_s
from benchmarks.photos import make_photos
from concurrent_loader import ConcurrentDataLoader

# torch's loader twice: how far it is from itself is what the machine cannot tell apart.
SIDES = {"torch": DataLoader, "ours": ConcurrentDataLoader, "torch_again": DataLoader}

BATCH_SIZE = 32
HUGGING_FACE = "Hugging Face datasets"
_SLOW_ITEM_S = 0.02


class MemoryItems(Dataset[tuple[Tensor, int]]):
    """Small images in one tensor, with labels in a list."""

    def __init__(self, length: int, slow: int | None = None) -> None:
        self._images = torch.zeros((length, 3, 32, 32), dtype=torch.uint8)
        self._labels = [number % 10 for number in range(length)]
        self._slow = slow

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self._slow:
            time.sleep(_SLOW_ITEM_S)
        return self._images[index], self._labels[index]


class Computed(Dataset[Any]):
    """Items that a function computes."""

    def __init__(self, length: int, compute: Callable[[int], Any]) -> None:
        self._length = length
        self._compute = compute

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._compute(index)


def _numpy(length: int) -> Dataset[Any]:
    """Makes images in memory that are cropped, mirrored, shifted and normalised with NumPy."""
    images = np.random.default_rng(0).integers(0, 256, (64, 96, 96, 3), dtype=np.uint8)

    def compute(index: int) -> tuple[np.ndarray, int]:
        top, left = np.random.randint(0, 16, 2)
        image = images[index % 64][top : top + 80, left : left + 80].astype(np.float32)
        if np.random.random() < 0.5:
            image = image[:, ::-1]
        image = (image * np.float32(np.random.uniform(0.8, 1.2)) - 120) / 60
        return np.ascontiguousarray(image.transpose(2, 0, 1)), index % 10

    return Computed(length, compute)


def spin(loops: int) -> int:
    """Computes in pure Python."""
    total = 0
    for number in range(loops):
        total += number * number
    return total


def is_installed(kind: str) -> bool:
    """Returns whether the packages of a kind of items are there."""
    return kind != HUGGING_FACE or find_spec("datasets") is not None


def _tensors(length: int) -> Dataset[Any]:
    return TensorDataset(torch.zeros((length, 64)), torch.zeros(length, dtype=torch.int64))


def _python(length: int, item_s: float) -> Dataset[Any]:
    began = process_time()
    spin(2_000_000)
    loops = int(item_s * 2_000_000 / (process_time() - began))
    return Computed(length, lambda number: spin(loops))


def _photos(length: int, folder: Path) -> Dataset[Any]:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    transform = v2.Compose(
        [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    )
    dataset = ImageFolder(str(make_photos(folder, count=64).root), transform=transform)
    return torch.utils.data.Subset(dataset, [number % len(dataset) for number in range(length)])


def _hugging_face(length: int) -> Dataset[Any]:
    import datasets

    columns = {"values": [[float(number)] * 64 for number in range(length)], "label": list(range(length))}
    return datasets.Dataset.from_dict(columns).with_format("torch")  # type: ignore[no-any-return]


class Kind(NamedTuple):
    """Items of one kind."""

    make: Callable[[int, Path], Dataset[Any]]  # length, folder for files
    length: int  # of an epoch in the loader's own process
    length_in_workers: int  # of an epoch with worker processes


KINDS: dict[str, Kind] = {
    "1 ms of Python": Kind(lambda length, _: _python(length, 0.001), 480, 960),
    "0.2 ms of Python": Kind(lambda length, _: _python(length, 0.0002), 2400, 4800),
    "in memory": Kind(lambda length, _: MemoryItems(length), 40_000, 8000),
    "one slow item of 20,000": Kind(lambda length, _: MemoryItems(length, slow=1000), 20_000, 20_000),
    "TensorDataset": Kind(lambda length, _: _tensors(length), 40_000, 8000),
    "NumPy augmentation": Kind(lambda length, _: _numpy(length), 2400, 4800),
    "ImageFolder, JPEG": Kind(_photos, 64, 512),
    HUGGING_FACE: Kind(lambda length, _: _hugging_face(length), 8000, 8000),
}


def epoch_times(
    kind: str, num_workers: int, num_rounds: int, scale: float, folder: str, batch_size: int = BATCH_SIZE
) -> dict[str, list[tuple[float, float]]]:
    """Measures alternating epochs of both loaders, torch's twice, in this process."""
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    # torch's advice not to have more workers than cores, which both sides get
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    one = KINDS[kind]
    length = max(batch_size, round((one.length_in_workers if num_workers else one.length) * scale))
    dataset = one.make(length, Path(folder))
    taken: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for number in range(-1, num_rounds):  # the first round warms caches up and does not count
        for side in SIDES:  # ours between torch's two turns, so that a drift of the machine's pace cancels out
            gc.collect()
            cpu_before_s, began = cpu_s(), perf_counter()
            loader: Any = SIDES[side](dataset, batch_size=batch_size, num_workers=num_workers)
            num_batches = sum(1 for _ in loader)
            took_s, used_s = perf_counter() - began, cpu_s() - cpu_before_s
            if num_batches != -(-length // batch_size):
                raise AssertionError(f"{side} gave {num_batches} batches of {length} items")
            if number >= 0:
                taken[side].append((took_s, used_s))
    return taken
