"""Crops, resizes, mirrors and normalizes decoded images of any sizes into one batch, on the device of the images.

GPU decoders return whole images; this module is the counterpart of `concurrent_loader.decode.crop` for them. On a CUDA
device one launch of a Triton kernel makes the whole batch. Elsewhere, or without Triton, torch crops the images one by
one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.decode.crop import Box
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["boxes_and_flips", "crop_resize", "has_triton"]

_log = logging.getLogger(__name__)

_DTYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16)
_MAX_BYTES = 2**31 - 1  # from the first to the last byte of an image: the kernel uses 32-bit offsets


@cache
def has_triton() -> bool:
    """Returns whether Triton can be imported."""
    try:
        import_module("concurrent_loader.augment.gpu_crop_kernel")
    except (ImportError, RuntimeError):
        return False
    return True


def boxes_and_flips(boxes: Sequence[Box]) -> tuple[torch.Tensor, torch.Tensor]:
    """Converts boxes to arguments of `crop_resize`: (n, 4) float64 of top, left, height, width, and (n,) bool."""
    places = [(box.top, box.left, box.height, box.width) for box in boxes]
    flips = torch.tensor([box.flip for box in boxes], dtype=torch.bool)
    return torch.tensor(places, dtype=torch.float64).reshape(-1, 4), flips


def crop_resize(
    images: Sequence[torch.Tensor],
    boxes: torch.Tensor,
    flips: torch.Tensor,
    size: int | tuple[int, int],
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.uint8,
    channels_last: bool = False,
    out: torch.Tensor | None = None,
    kernel: bool | Literal["auto"] = "auto",
) -> torch.Tensor:
    """Crops and resizes one box of each image into one batch.

    The filter is that of Pillow and of torch with ``antialias=True``: a triangle as wide as the scale, clipped to the
    box. A box may begin within a pixel: centers are measured from its edges, and every pixel that it touches takes
    part. Values are rounded to integer levels before they are normalized, so the result equals normalizing a batch of
    uint8.

    Args:
        images: n tensors (C, H, W) uint8 of any sizes and strides, on one device. C is 1 (repeated to three channels),
            3, or 4 (the last channel is ignored).
        boxes: (n, 4) on the CPU: top, left, height and width in pixels, within the images.
        flips: (n,) bool on the CPU: whether to mirror left to right.
        size: Height and width of the output in pixels, or its side.
        mean: Mean of each channel for levels in [0, 1]; requires ``std``. Default None, which does not normalize.
        std: Standard deviation of each channel for levels in [0, 1]; requires ``mean``.
        dtype: uint8 (default); or float32, float16, bfloat16 for levels in [0, 1] or normalized values.
        channels_last: Whether to store the channels of a pixel next to each other. Default False.
        out: Output tensor (n, 3, height, width) of this dtype, on this device, with any strides. Default: a new one.
        kernel: Whether Triton makes the batch. The default ``"auto"`` uses Triton on CUDA devices where its kernel
            works.

    Returns:
        (n, 3, height, width), which is ``out`` if given.

    Raises:
        ConfigurationError: An argument is invalid, or a box is not within its image. Nothing is read in this case.

    Ordering: Runs on the current stream of the device. If images were made on another stream, wait for it first, and
    keep or record the images (`torch.Tensor.record_stream`) as for any other use. Thread-safety: May be called from any
    number of threads.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise ConfigurationError("size must be a positive integer, or two of them", got=size)
    device = _check_images(images)
    wanted = _check_boxes(images, boxes, flips)
    multiply, add = _levels(mean, std, dtype)
    shape = (len(images), 3, height, width)
    if out is None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        out = torch.empty(shape, dtype=dtype, device=device, memory_format=layout)
    elif tuple(out.shape) != shape or out.dtype != dtype or out.device != device:
        found = tuple(out.shape), out.dtype, out.device
        raise ConfigurationError("out has the wrong shape, dtype or device", expected=(shape, dtype, device), got=found)
    if not len(images):
        return out
    if _takes_kernel(kernel, device):
        _launch(images, wanted, out, multiply, add)
    else:
        for image, box, into in zip(images, wanted, out, strict=True):
            _resize_one(image, box, into, multiply, add)
    return out


def _takes_kernel(kernel: bool | Literal["auto"], device: torch.device) -> bool:
    return kernel is True or (kernel == "auto" and device.type == "cuda" and has_triton() and _works(device))


@cache
def _works(device: torch.device) -> bool:
    """Returns whether the kernel compiles, launches and gives the right result; Triton needs tools of the system.

    Raises:
        torch.OutOfMemoryError, torch.AcceleratorError: The device itself failed.
    """
    level, side = 100, 32  # a multiple of 16, so that the kernel is also compiled for sizes such as 224
    whole = _Axis.of(0, 2 * side)
    try:
        image = torch.full((3, 2 * side, 2 * side), level, dtype=torch.uint8, device=device)
        out = torch.empty((1, 3, side, side), dtype=torch.uint8, device=device)
        _launch([image], [_CheckedBox(whole, whole, False)], out, [1.0] * 3, [0.0] * 3)
        is_right = bool((out == level).all())
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:  # noqa: BLE001 - Triton's compiler and tools raise many kinds of errors
        what = f"{type(error).__name__}: {error}"
        _log.warning("the crop kernel cannot be used on %s, so torch crops images one by one: %s", device, what)
        return False
    if not is_right:
        _log.warning("the crop kernel gives wrong results on %s, so torch crops images one by one", device)
    return is_right


@dataclass(frozen=True, slots=True)
class _Axis:
    """Describes the rows or columns of an image that a box touches.

    Attributes:
        lowest: First pixel that the box touches.
        num_pixels: Number of pixels that the box touches.
        start: Distance from the edge of the first pixel to the edge of the box, in pixels.
        extent: Length of the box in pixels.
    """

    lowest: int
    num_pixels: int
    start: float
    extent: float

    @classmethod
    def of(cls, start: float, extent: float) -> _Axis:
        lowest = math.floor(start)
        return cls(lowest, math.ceil(start + extent) - lowest, start - lowest, extent)

    def matrix(self, length: int, device: torch.device) -> torch.Tensor:
        """Returns the filter: (length, num_pixels) float32, each row of which sums to 1."""
        scale = self.extent / length
        support = max(scale, 1.0)
        center = self.start + (torch.arange(length, device=device, dtype=torch.float32).unsqueeze(1) + 0.5) * scale
        pixel = torch.arange(self.num_pixels, device=device, dtype=torch.float32)
        seen = (pixel >= (center - support + 0.5).floor()) & (pixel < (center + support + 0.5).floor())
        weights = (1 - ((pixel + 0.5 - center) / support).abs()).clamp_(min=0) * seen
        return weights / weights.sum(1, keepdim=True)


@dataclass(frozen=True, slots=True)
class _CheckedBox:
    """Stores a checked box."""

    y: _Axis
    x: _Axis
    flip: bool


def _check_images(images: Sequence[torch.Tensor]) -> torch.device:
    for image in images:
        if image.dtype != torch.uint8 or image.dim() != 3 or image.shape[0] not in (1, 3, 4) or not image.numel():
            found = tuple(image.shape), image.dtype
            raise ConfigurationError("an image must be (C, H, W) uint8 with C = 1, 3 or 4", got=found)
        if image.device != images[0].device:
            raise ConfigurationError("all images must be on one device", got=(images[0].device, image.device))
        if sum((sides - 1) * stride for sides, stride in zip(image.shape, image.stride(), strict=True)) > _MAX_BYTES:
            raise ConfigurationError("an image spans more than 2 GiB of memory", got=tuple(image.shape))
    return images[0].device if len(images) else torch.device("cpu")


def _check_boxes(images: Sequence[torch.Tensor], boxes: torch.Tensor, flips: torch.Tensor) -> list[_CheckedBox]:
    if boxes.device.type != "cpu" or flips.device.type != "cpu":
        raise ConfigurationError("boxes and flips must be on the CPU", got=(boxes.device, flips.device))
    if tuple(boxes.shape) != (len(images), 4) or tuple(flips.shape) != (len(images),) or flips.dtype != torch.bool:
        found = tuple(boxes.shape), tuple(flips.shape), flips.dtype
        raise ConfigurationError(f"{len(images)} images need (n, 4) boxes and (n,) bool flips", got=found)
    wanted = []
    for place, (image, (top, left, height, width), flip) in enumerate(
        zip(images, boxes.double().tolist(), flips.tolist(), strict=True)
    ):
        # Written so that NaN fails, too.
        fits = 0 <= top < top + height <= image.shape[1] and 0 <= left < left + width <= image.shape[2]
        if not fits:
            raise ConfigurationError(
                f"box {place} does not lie within its image",
                expected=tuple(image.shape[1:]),
                got=(top, left, height, width),
            )
        wanted.append(_CheckedBox(_Axis.of(top, height), _Axis.of(left, width), flip))
    return wanted


def _levels(
    mean: Sequence[float] | None, std: Sequence[float] | None, dtype: torch.dtype
) -> tuple[list[float], list[float]]:
    """Returns, for each channel, the factor for levels from 0 to 255 and the offset to add."""
    if dtype not in _DTYPES:
        raise ConfigurationError("dtype must be uint8, float32, float16 or bfloat16", got=dtype)
    if (mean is None) != (std is None):
        raise ConfigurationError("pass both mean and std, or neither", got=(mean, std))
    if mean is None or std is None:
        return ([1.0] * 3, [0.0] * 3) if dtype == torch.uint8 else ([1 / 255] * 3, [0.0] * 3)
    if dtype == torch.uint8:
        raise ConfigurationError("normalized values are not uint8: pass a floating-point dtype", got=dtype)
    if len(mean) != 3 or len(std) != 3 or not all(math.isfinite(each) for each in (*mean, *std)) or min(std) <= 0:
        raise ConfigurationError("mean and std must be three finite numbers each, std positive", got=(mean, std))
    return [1 / (255 * each) for each in std], [-one / each for one, each in zip(mean, std, strict=True)]


def _resize_one(
    image: torch.Tensor, wanted: _CheckedBox, out: torch.Tensor, multiply: Sequence[float], add: Sequence[float]
) -> None:
    y, x = wanted.y, wanted.x
    part = image[:3, y.lowest : y.lowest + y.num_pixels, x.lowest : x.lowest + x.num_pixels].float()
    down, across = y.matrix(out.shape[1], image.device), x.matrix(out.shape[2], image.device)
    if wanted.flip:
        across = across.flip(0)
    levels = (down @ part @ across.T).add_(0.5).floor_().clamp_(0, 255)
    if out.dtype != torch.uint8:
        by_channel = torch.tensor([multiply, add], device=image.device)[:, :, None, None]
        levels = levels * by_channel[0] + by_channel[1]
    out.copy_(levels)


def _launch(
    images: Sequence[torch.Tensor],
    wanted: Sequence[_CheckedBox],
    out: torch.Tensor,
    multiply: Sequence[float],
    add: Sequence[float],
) -> None:
    kernels: Any = import_module("concurrent_loader.augment.gpu_crop_kernel")
    device = out.device
    facts, places = _table(images, wanted)
    # Both tables go in one copy, from page-locked memory, so that the CPU does not wait for it.
    whole = torch.empty(facts.nbytes + places.nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    whole[: facts.nbytes] = torch.from_numpy(facts.view(np.uint8).reshape(-1))
    whole[facts.nbytes :] = torch.from_numpy(places.view(np.uint8).reshape(-1))
    there = whole.to(device, non_blocking=True)
    height, width = out.shape[2:]
    tiles = math.ceil(height / kernels.BLOCK_Y) * math.ceil(width / kernels.BLOCK_X)
    # Triton launches on the current device, not on the device of its arguments.
    with torch.cuda.device(device.index if device.type == "cuda" else -1):
        kernels.crop_resize_kernel[(len(images) * tiles,)](
            there[: facts.nbytes].view(torch.int64),
            there[facts.nbytes :].view(torch.float32),
            out,
            height,
            width,
            *out.stride(),
            *multiply,
            *add,
            BLOCK_Y=kernels.BLOCK_Y,
            BLOCK_X=kernels.BLOCK_X,
            num_warps=kernels.NUM_WARPS,
            enable_fp_fusion=True,
        )


def _table(
    images: Sequence[torch.Tensor], wanted: Sequence[_CheckedBox]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Returns the arguments of the kernel for each image: (n, 8) integers and (n, 4) floats."""
    facts = np.zeros((len(images), 8), np.int64)
    places = np.empty((len(images), 4), np.float32)
    for at, (image, box) in enumerate(zip(images, wanted, strict=True)):
        channel, down, across = image.stride()
        begin = image.data_ptr() + box.y.lowest * down + box.x.lowest * across
        # A step of 0 repeats the only channel of a gray image.
        step = channel if image.shape[0] > 1 else 0
        facts[at, :7] = begin, step, down, across, box.y.num_pixels, box.x.num_pixels, box.flip
        places[at] = box.y.start, box.x.start, box.y.extent, box.x.extent
    return facts, places
