"""From a bucket to a GPU: ``python -m benchmarks.gpu [--json FILE] [--quick]``; without a GPU it ends with status 2.

*Decoding*: batches of 32, 128 and 512 photographs, from page-locked memory to images on the device (``decode``), and
to a batch of 224 × 224 crops (``stage``: all that the device stage does). Neither torchcodec nor torchvision lets its
caller choose nvJPEG's backend: baseline images go to the hardware engine where the GPU has one. ``software`` is the
same images as progressive JPEGs, which nvJPEG decodes one by one with its software (CPU and kernels together).

*Training*: ResNet-50 in bf16, from shards in a bucket behind an S3-like latency with a cold cache, decoded and cropped
on the device; against the same steps over one batch that is on the device already (``synthetic``: the most that the
network can take), and against torch's DataLoader with one worker per core that decodes and crops the same files from
the local drive on the CPU. The GPU's waiting is measured on the GPU: from the end of each step to the beginning of the
next, by events.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import timeit
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import resnet50

from benchmarks.bucket import open_bucket, photos_in, write_shards
from benchmarks.command import program, rounds
from benchmarks.machine import cpu_of_tree_s, num_cores
from benchmarks.peers.job import Job, Treat
from benchmarks.photos import CLASSES, PhotoFolder, replicate_photos, saved
from benchmarks.training import MEAN, STD
from concurrent_loader import Batch, ConcurrentDataLoader, RandomResizedCrop, ShardDataset
from concurrent_loader.device import DeferredDecoder, DeviceBackend, DeviceStage, open_backend, resolve_device
from concurrent_loader.stats.loader_stats import StageClock

NO_GPU = 2  # exit status
SIDE = 224
CROP = RandomResizedCrop(SIDE)
Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    batch_sizes: tuple[int, ...]  # to decode
    num_calls: int  # of each, and as many before they count
    num_photos: int  # different ones
    epoch_bytes: int  # of the training set, which repeats them
    train_batch: int
    num_rounds: int  # epochs of each side
    latency_ms: int = 30


FULL = Load((32, 128, 512), 20, 1600, 2_000_000_000, 256, 3)
QUICK = Load((32,), 3, 64, 8_000_000, 32, 1)


class Run(NamedTuple):
    """One epoch of one side."""

    num_samples: int
    wall_s: float  # from the request for the first batch until the device has done the last step
    gpu_wait_s: float  # between steps, on the device
    cpu_s: float  # of this process and its workers
    first_batch_s: float


def time_steps(
    batches: Batches,
    step: Callable[[Tensor, Tensor], object],
    *,
    make_event: Callable[[], Any],
    finish: Callable[[], object],
) -> Run:
    """Trains on all batches; ``step`` does not wait for the device, ``finish`` does."""
    cpu_s, began = cpu_of_tree_s(), perf_counter()
    num_samples, first_batch_s = 0, 0.0
    begins, ends = [], []

    for images, labels in batches:
        first_batch_s = first_batch_s or perf_counter() - began
        begins.append(make_event())  # as of `torch.cuda.Event`
        ends.append(make_event())
        begins[-1].record()
        step(images, labels)
        ends[-1].record()
        num_samples += len(labels)
    finish()
    wall_s = perf_counter() - began
    waits_ms = [end.elapsed_time(begin) for end, begin in zip(ends, begins[1:], strict=False)]
    return Run(num_samples, wall_s, first_batch_s + sum(waits_ms) / 1000, cpu_of_tree_s() - cpu_s, first_batch_s)


def figures_of(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Returns medians over the rounds of ``synthetic``, ``bucket`` and ``torch``, and ratios within a round."""
    median = statistics.median
    rows = {
        side: {
            "side": side,
            "images_s": round(median(run.num_samples / run.wall_s for run in made), 1),
            "gpu_wait_share": round(median(run.gpu_wait_s / run.wall_s for run in made), 4),
            "cpu_s_per_1000": round(median(1000 * run.cpu_s / run.num_samples for run in made), 4),
            "first_batch_s": round(median(run.first_batch_s for run in made), 4),
        }
        for side, made in runs.items()
    }
    turns = list(zip(runs["bucket"], runs["synthetic"], runs["torch"], strict=True))
    of_synthetic = median((a.num_samples / a.wall_s) / (b.num_samples / b.wall_s) for a, b, _ in turns)
    # What decoding and loading cost beside the training step itself, which all sides make.
    cpu = median(_beside(a, b) / max(1e-9, _beside(c, b)) for a, b, c in turns)
    return {
        "rows": list(rows.values()),
        "gpu_wait_share": rows["bucket"]["gpu_wait_share"],
        "ratio_to_synthetic": round(of_synthetic, 4),
        "cpu_ratio_to_torch": round(cpu, 4),
        "targets": {"gpu_wait_share": 0.03, "ratio_to_synthetic": 0.95, "cpu_ratio_to_torch": 0.2},
    }


def _beside(run: Run, synthetic: Run) -> float:
    return run.cpu_s / run.num_samples - synthetic.cpu_s / synthetic.num_samples


# -- decoding ----------------------------------------------------------------------------------------------------------


def measure_decoding(jpegs: Sequence[bytes], load: Load, backend: DeviceBackend) -> list[dict[str, Any]]:
    """Decodes batches of each size: baseline, progressive, and by the whole stage."""
    progressive = [_as_progressive(data) for data in jpegs]
    rows = []
    for size in load.batch_sizes:
        calls = {
            ("decode", "hardware"): _decoding(jpegs, size, backend),
            ("decode", "software"): _decoding(progressive, size, backend),
            ("stage", "hardware"): _staging(jpegs, size, backend),
        }
        for (what, path), call in calls.items():
            times = timeit.repeat(call, number=1, repeat=2 * load.num_calls)
            images_s = round(size / statistics.median(times[load.num_calls :]), 1)
            rows.append({"what": what, "path": path, "batch_size": size, "images_s": images_s})
    return rows


def _decoding(jpegs: Sequence[bytes], size: int, backend: DeviceBackend) -> Callable[[], None]:
    batch = []
    for number in range(size):
        data = jpegs[number % len(jpegs)]
        host = backend.host_memory(len(data))  # page-locked
        host.numpy()[:] = np.frombuffer(data, np.uint8)
        batch.append(host)

    def run() -> None:
        backend.drain()
        backend.decode("nvjpeg", batch, [1] * size, "rgb")

    return run


def _staging(jpegs: Sequence[bytes], size: int, backend: DeviceBackend) -> Callable[[], None]:
    decoder = DeferredDecoder("image", CROP, "jpeg", seed=0, codecs=backend.codecs)
    prepared = decoder.decoders(0, np.arange(size), [""] * size)
    images = [prepare(jpegs[number % len(jpegs)]) for number, prepare in enumerate(prepared)]
    batch = Batch({"image": decoder.column(images), "label": torch.arange(size)})
    stage = DeviceStage(backend, clock=StageClock())

    def run() -> None:
        stage.hand_over(stage.stage(batch))
        backend.drain()

    return run


def _as_progressive(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as image:
        return saved(image, "JPEG", quality="keep", progressive=True)


# -- training ----------------------------------------------------------------------------------------------------------


class Training:
    """A network in bf16, step by step, without waiting for the device; ResNet-50 for the figures."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._device = device
        self._network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.1, momentum=0.9)
        self._loss = nn.CrossEntropyLoss()
        self._mean = torch.tensor(MEAN, device=device).mul(255).view(1, 3, 1, 1)
        self._std = torch.tensor(STD, device=device).mul(255).view(1, 3, 1, 1)

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Does one step of gradient descent; ``images`` (N, 3, 224, 224) uint8, ``labels`` (N,) int64."""
        images = images.to(self._device, non_blocking=True)
        labels = labels.to(self._device, non_blocking=True)
        images = ((images.float() - self._mean) / self._std).to(memory_format=torch.channels_last)
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            loss = self._loss(self._network(images), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()


def _synthetic(load: Load, num_samples: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    images = torch.randint(0, 256, (load.train_batch, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
    labels = torch.randint(0, len(CLASSES), (load.train_batch,), device=device)
    for _ in range(num_samples // load.train_batch):
        yield images, labels


def _from_bucket(
    url: str, options: dict[str, str], load: Load, device: torch.device, cache_dir: str
) -> Iterator[tuple[Tensor, Tensor]]:
    with ShardDataset(url, columns=("image", "label"), storage_options=options, cache_dir=cache_dir) as dataset:
        loader = ConcurrentDataLoader(
            dataset, load.train_batch, shuffle=True, decode={"image": CROP}, drop_last=True, device=device
        )
        for batch in loader:
            yield batch["image"], batch["label"]


def _from_torch(photos: PhotoFolder, load: Load) -> Iterator[tuple[Tensor, Tensor]]:
    treat = Treat(Job(peer="torch_items", photos="", decoded=True))
    folder = ImageFolder(str(photos.root), loader=lambda path: treat(Path(path).read_bytes()))
    yield from DataLoader(
        folder, load.train_batch, shuffle=True, num_workers=num_cores(), drop_last=True, pin_memory=True
    )


def measure_training(photos: PhotoFolder, load: Load, device: torch.device, console: Console) -> dict[str, Any]:
    """Trains an epoch per side and round, sides in turns."""
    torch.manual_seed(0)
    training = Training(resnet50(num_classes=1000), device)

    def timed(batches: Batches) -> Run:
        make_event = partial(torch.cuda.Event, enable_timing=True)
        return time_steps(batches, training.step, make_event=make_event, finish=partial(torch.cuda.synchronize, device))

    def turn(side: str) -> Run:
        with tempfile.TemporaryDirectory(prefix="cold-", dir=folder) as cache:
            return timed(sides[side](cache))

    sides: dict[str, Callable[[str], Batches]] = {
        "synthetic": lambda cache: _synthetic(load, photos.count, device),
        "bucket": lambda cache: _from_bucket(url, dict(bucket.remote), load, device, cache),
        "torch": lambda cache: _from_torch(photos, load),
    }
    with (
        tempfile.TemporaryDirectory(prefix="gpu-") as folder,
        open_bucket(Path(folder) / "s3", latency_ms=load.latency_ms) as bucket,
    ):
        url = f"s3://{bucket.name}/photos"
        write_shards(photos, url, bucket.direct)
        timed(_synthetic(load, 20 * load.train_batch, device))  # algorithms are chosen, memory is allocated
        runs = rounds(console, "Epochs", sides, load.num_rounds, turn)
        return {**figures_of(runs), "server": bucket.server, "latency": bucket.latency}


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Runs everything."""
    device = resolve_device("cuda")
    assert device is not None
    with tempfile.TemporaryDirectory(prefix="gpu-photos-") as folder:
        photos = photos_in(folder, load.num_photos, console)
        epoch = replicate_photos(photos, min_bytes=load.epoch_bytes)
        jpegs = [path.read_bytes() for path in photos.paths()]
        backend = open_backend(device, pinned=True)
        decoding = measure_decoding(jpegs, load, backend)
        backend.close()
        return {
            "device": torch.cuda.get_device_name(device),
            "versions": {"cuda": torch.version.cuda},
            "mean_bytes": round(photos.mean_bytes),
            "decode": decoding,
            "training": measure_training(epoch, load, device, console),
        }


_measure = program("gpu", __doc__, run_benchmark, FULL, QUICK)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    if torch.cuda.is_available():
        return _measure(arguments)
    print("benchmarks.gpu: no CUDA device can be used here; nothing was measured", file=sys.stderr)
    return NO_GPU


if __name__ == "__main__":
    raise SystemExit(main())
