"""Lossless images on a GPU, for `benchmarks.lossless`: decoding, preparing data, a step of training, an epoch.

All of it against PNG, decoded by torchcodec on every core and copied. Wall time, medians, the device waited for.
"""

from __future__ import annotations

import io
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.decode import make_decoder
from concurrent_loader.lossless import decode_batch
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.lossless import encode

GPU_KEYS = ("gpu_decode_mpix_s", "gpu_prepare_vs_png", "gpu_train_vs_png", "gpu_loader_mpix_s", "gpu_loader_vs_png")
_BATCH = 16
_NUM_BATCHES = 4


def measure_on_gpu(images: list[npt.NDArray[np.uint8]], num_rounds: int) -> dict[str, float]:
    """Measures on the current CUDA device."""
    batch = [images[at % len(images)] for at in range(_BATCH)]
    files = [encode(np.ascontiguousarray(each.transpose(2, 0, 1)), compress=False) for each in batch]
    pngs = [_png(each) for each in batch]
    mpix = sum(each.shape[0] * each.shape[1] for each in batch) / 1e6
    decoder = make_decoder("rgb", "png")
    step = _training_step()
    with ThreadPoolExecutor(os.cpu_count()) as threads:

        def by_png() -> torch.Tensor:
            pixels = torch.stack([each.contiguous() for each in threads.map(decoder, pngs)])
            return pixels.pin_memory().to("cuda", non_blocking=True)

        def by_ours() -> torch.Tensor:
            return torch.stack(decode_batch(files, device="cuda"))

        if not torch.equal(by_png(), by_ours()):
            raise RuntimeError("the pixels differ")
        prepare = _in_turns((by_png, by_ours), num_rounds)
        train = _in_turns((lambda: step(by_png()), lambda: step(by_ours())), num_rounds)
    epochs = (epoch_by_loader(pngs, "png", "cuda"), epoch_by_loader(files, "image/lossless", "cuda"))
    epoch = _in_turns(epochs, num_rounds)
    return {
        "gpu_decode_mpix_s": round(mpix / prepare[1], 1),
        "gpu_prepare_vs_png": round(prepare[0] / prepare[1], 3),
        "gpu_train_vs_png": round(train[0] / train[1], 3),
        "gpu_loader_mpix_s": round(_NUM_BATCHES * mpix / epoch[1], 1),
        "gpu_loader_vs_png": round(epoch[0] / epoch[1], 3),
    }


def epoch_by_loader(files: list[bytes], column_type: str, device: str) -> Callable[[], int]:
    """Stores images of one size in this process's memory, some times over."""
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"image": column_type}) as writer:
        for data in files * _NUM_BATCHES:
            writer.write({"image": data})

    def load() -> int:
        with ShardDataset(url) as dataset:
            loader = ConcurrentDataLoader(dataset, batch_size=len(files), decode={"image": "rgb"}, device=device)
            for batch in loader:
                if batch["image"].device.type != torch.device(device).type:
                    raise RuntimeError("a batch is not where it was wanted")
            return loader.stats.num_device_decoded

    return load


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=6)
    return file.getvalue()


def _training_step() -> Callable[[torch.Tensor], object]:
    """Returns a few convolutions, a label for each pixel."""
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, stride=2, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, stride=2, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(64, 19, 1), torch.nn.Upsample(scale_factor=4),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)

    def step(pixels: torch.Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            scores = layers(pixels.half() / 255)
            loss = torch.nn.functional.cross_entropy(scores.float(), pixels[:, 0].long() % 19)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _in_turns(sides: tuple[Callable[[], object], ...], num_rounds: int) -> list[float]:
    """Returns the median seconds of each, after a first turn that is not counted."""
    took: list[list[float]] = [[] for _ in sides]
    for turn in range(num_rounds + 1):
        for at, side in enumerate(sides):
            torch.cuda.synchronize()
            began = time.perf_counter()
            side()
            torch.cuda.synchronize()
            if turn:
                took[at].append(time.perf_counter() - began)
    return [statistics.median(each) for each in took]
