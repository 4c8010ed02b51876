"""Four pipelines: ``python -m benchmarks.pipelines [--json FILE] [--quick]``.

Zolnouri, Li and Partovi Nia, "Importance of Data Loading Pipeline in Training Deep Neural Networks" (arXiv 2005.02130),
time an epoch with {files, a binary format} × {augmentation on the CPU, on the device}, with few and with many
augmentations: the format takes 28 % off, the device 40 %. Here:

- *files*: an image folder on the local drive, read by torch's DataLoader with as many worker processes as cores;
- *shards*: the same images as shards on the same drive, read by `ConcurrentDataLoader`;
- *CPU augmentation*: every operation image by image, in torch's workers, or in the loader's threads (`transform`);
- *device augmentation*: images are decoded and cropped as before (on a GPU, shards are decoded and cropped there),
  because a batch needs one size. The training process does all further operations to the whole batch: on the GPU where
  there is one, otherwise by torch's threads, with one set of parameters per batch, as torchvision's transforms draw it.

*Few* is random resized crop and flip; *many* adds colour jitter, grayscale and blur. All pipelines train the same small
network with the same steps; rounds alternate, and figures are medians. Everything runs in one process, except workers.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    # Before torch is imported: OpenMP's threads would spin while they wait, and take cores from those that decode.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.bucket import photos_in, write_shards
from benchmarks.command import program, rounds
from benchmarks.machine import num_cores
from benchmarks.photos import CLASSES, PhotoFolder
from benchmarks.training import INPUT_SIZE, Trainer, decode_rgb
from concurrent_loader import ConcurrentDataLoader, RandomResizedCrop, ShardDataset

Place = Literal["cpu", "device"]
PLACES: tuple[Place, ...] = ("cpu", "device")
ZOLNOURI = {"reader": -0.28, "device": -0.40}
_SCALE = (0.35, 1.0)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One of the four, with few or many augmentations."""

    source: str  # files or shards
    place: Place  # where images are augmented
    operations: str  # few or many


PIPELINES = tuple(
    Pipeline(source, place, operations)
    for operations in ("few", "many")
    for source in ("files", "shards")
    for place in PLACES
)


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_images: int
    num_rounds: int
    batch_size: int = 64
    num_workers: int | None = None  # of torch's loader; None is one per core


FULL = Load(num_images=1280, num_rounds=5)
QUICK = Load(num_images=12, num_rounds=1, batch_size=4, num_workers=1)


def further(operations: str) -> Callable[[Tensor], Tensor]:
    """Returns what is done after the crop: to an image (3, H, W), or to a batch of them; uint8 before and after."""
    steps: list[torch.nn.Module] = [v2.RandomHorizontalFlip()]
    if operations == "many":
        steps += [
            v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
            v2.RandomGrayscale(p=0.2),
            v2.GaussianBlur(kernel_size=9, sigma=(0.1, 2.0)),
        ]
    made: Callable[[Tensor], Tensor] = v2.Compose(steps)
    return made


def _load(augment: Callable[[Tensor], Tensor], path: str) -> Tensor:
    return augment(decode_rgb(Path(path).read_bytes()))


def batches(
    pipeline: Pipeline, photos: PhotoFolder, shards: str, load: Load, device: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields one epoch of a pipeline: images (N, 3, 128, 128) uint8 and labels (N,)."""
    if pipeline.source == "files":
        crop = v2.RandomResizedCrop(INPUT_SIZE, scale=_SCALE, antialias=True)
        augment = v2.Compose([crop, further(pipeline.operations)]) if pipeline.place == "cpu" else crop
        folder = ImageFolder(str(photos.root), loader=partial(_load, augment))
        num_workers = load.num_workers or num_cores()
        yield from DataLoader(
            folder, load.batch_size, shuffle=True, num_workers=num_workers, drop_last=True, pin_memory=device != "cpu"
        )
        return
    on_cpu = further(pipeline.operations)

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "image": on_cpu(sample["image"])}

    with ShardDataset(shards, columns=("image", "label")) as dataset:
        box = RandomResizedCrop(INPUT_SIZE, scale=_SCALE, flip=0.0)  # mirrored with the others
        loader = ConcurrentDataLoader(
            dataset, load.batch_size, shuffle=True, decode={"image": box}, drop_last=True, device=device,
            transform=transform if pipeline.place == "cpu" else None,
        )  # fmt: skip
        for batch in loader:
            yield batch["image"], batch["label"]


def time_epoch(
    pipeline: Pipeline, photos: PhotoFolder, shards: str, load: Load, device: str
) -> tuple[float, float, float]:
    """Trains one epoch with a pipeline; returns its seconds, and those spent waiting for batches and augmenting them.

    The clock runs from the request for the first batch to the end of the last step.
    """
    torch.manual_seed(0)
    trainer = Trainer(len(CLASSES), device=device)
    augment = further(pipeline.operations) if pipeline.place == "device" else None
    waiting_s = augmenting_s = 0.0
    began = asked = perf_counter()
    for images, labels in batches(pipeline, photos, shards, load, device):
        got = perf_counter()
        waiting_s += got - asked
        if augment is not None:
            images = augment(images.to(device))
        augmenting_s += perf_counter() - got
        trainer.step(images, labels)  # which reads the loss, and so waits for the device
        asked = perf_counter()
    return perf_counter() - began, waiting_s, augmenting_s


def changes(epoch_s: dict[Pipeline, float]) -> dict[str, float]:
    """Returns what format and device change in an epoch's time over files with CPU augmentation; −0.28 is 28 % less."""
    found: dict[str, float] = {}
    for operations in ("few", "many"):
        base = epoch_s[Pipeline("files", "cpu", operations)]
        for name, place in zip(("reader", "device"), PLACES, strict=True):
            found[f"{name}_change_{operations}"] = round(epoch_s[Pipeline("shards", place, operations)] / base - 1, 4)
    return found


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Runs all rounds."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory(prefix="pipelines-") as folder:
        photos, shards = photos_in(folder, load.num_images, console), f"{folder}/shards"
        write_shards(photos, shards)
        measure = partial(time_epoch, photos=photos, shards=shards, load=load, device=device)
        epochs = rounds(console, "Epochs", PIPELINES, load.num_rounds, measure)
    epoch_s = {pipeline: median(epoch_s for epoch_s, _, _ in made) for pipeline, made in epochs.items()}
    num_samples = load.num_images // load.batch_size * load.batch_size
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "none: the training process's torch threads",
        "num_samples": num_samples,
        "rounds": load.num_rounds,
        "rows": [
            {
                **asdict(pipeline),
                "epoch_s": round(epoch_s[pipeline], 4),
                "images_s": round(num_samples / epoch_s[pipeline], 1),
                "waiting_share": round(median(waiting / whole for whole, waiting, _ in made), 4),
                "augmenting_share": round(median(augmenting / whole for whole, _, augmenting in made), 4),
                "spread_s": [round(edge(whole for whole, _, _ in made), 4) for edge in (min, max)],
            }
            for pipeline, made in epochs.items()
        ],
        **changes(epoch_s),
        "zolnouri": ZOLNOURI,
    }


main = program("pipelines", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
