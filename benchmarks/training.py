"""The consumer at the end of the data's way: a small convolutional network and what one epoch of it is worth.

Every side of a comparison gets the same decoder, the same augmentation, the same initial weights and the same steps;
only where the bytes come from differs.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torchvision.io import ImageReadMode
from torchvision.transforms import v2

INPUT_SIZE = 128
MIN_SCALE = 0.35  # least share of an image's area that a crop has
DECODER = "torchcodec" if importlib.util.find_spec("torchcodec") else "torchvision"
_decode_jpeg = (
    importlib.import_module("torchcodec.decoders").decode_jpeg
    if DECODER == "torchcodec"
    else partial(importlib.import_module("torchvision.io").decode_jpeg, mode=ImageReadMode.RGB)
)
MEAN = (0.485, 0.456, 0.406)  # ImageNet's, as most recipes use them
STD = (0.229, 0.224, 0.225)


def augmentation(size: int = INPUT_SIZE, min_scale: float = MIN_SCALE) -> Callable[[Tensor], Tensor]:
    """Returns the usual recipe for training: a random box scaled to a size, mirrored half of the time."""
    crop = v2.RandomResizedCrop(size, scale=(min_scale, 1.0), antialias=True)
    transform: Callable[[Tensor], Tensor] = v2.Compose([crop, v2.RandomHorizontalFlip()])
    return transform


def decode_rgb(data: bytes) -> Tensor:
    """Decodes a JPEG with the fastest decoder that torch users have at hand (see `DECODER`).

    torchcodec and torchvision.io (deprecated since 0.29) decode these images equally fast; PIL, the usual recipe,
    takes 1.4 times as long: a comparison with PIL would flatter the loader, which uses torchcodec itself.
    """
    # A copy of 3 µs, because torch warns about read-only buffers.
    image: Tensor = _decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return image


def _network(num_classes: int) -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(3, 24), *block(24, 48), *block(48, 96), *block(96, 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lesson:
    """What an epoch taught."""

    first_loss: float  # mean cross-entropy over the first tenth of the steps
    last_loss: float  # mean over the last tenth
    # share of the images in the last quarter of the epoch that the network, which sees each of them for the first
    # time, puts into the right class before it learns from them
    accuracy: float


class Trainer:
    """Trains the network step by step on the CPU, or on the GPU where there is one."""

    def __init__(self, num_classes: int, *, seed: int = 0, device: str = "cpu") -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = _network(num_classes)
        self._device = torch.device(device)
        self._network = network.to(self._device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=2e-3)
        self._loss = nn.CrossEntropyLoss()
        self._mean = torch.tensor(MEAN, device=self._device).mul(255).view(1, 3, 1, 1)
        self._std = torch.tensor(STD, device=self._device).mul(255).view(1, 3, 1, 1)
        self._steps: list[tuple[float, int, int]] = []  # loss, images in the right class, images

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Does one step of gradient descent; returns the loss before it."""
        images = images.to(self._device, torch.float32, memory_format=torch.channels_last)
        labels = labels.to(self._device)
        logits = self._network((images - self._mean) / self._std)
        loss = self._loss(logits, labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        value = float(loss.detach())
        self._steps.append((value, int((logits.detach().argmax(1) == labels).sum()), len(labels)))
        return value

    def lesson(self) -> Lesson:
        """Returns what was learnt so far, from at least one step."""
        losses, right, seen = zip(*self._steps, strict=True)
        tenth = max(1, len(losses) // 10)
        quarter = max(1, len(losses) // 4)
        accuracy = sum(right[-quarter:]) / sum(seen[-quarter:])
        return Lesson(sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth, accuracy)
