"""From decoded pictures of any sizes to one batch of crops: crop, resize, mirror and normalise, where the pictures are.

The device's side of `concurrent_loader.decode.crop`: decoders on the GPU make whole pictures. On a CUDA device all
of it is one launch of a Triton kernel; elsewhere, and without Triton, torch does it picture by picture.
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
from storage.errors import ConfigurationError

__all__ = ["boxes_and_flips", "crop_resize", "has_triton"]

_log = logging.getLogger(__name__)

_DTYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16)
_MOST_BYTES = 2**31 - 1  # from a picture's first byte to its last: the kernel counts with 32 bits


@cache
def has_triton() -> bool:
    """Whether there is a Triton that can be imported."""
    try:
        import_module("concurrent_loader.augment.fused_kernel")
    except (ImportError, RuntimeError):
        return False
    return True


def boxes_and_flips(boxes: Sequence[Box]) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes as `crop_resize` takes them: (n, 4) float64 of top, left, height and width, and (n,) bool."""
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
    """Makes one batch of a box of each picture.

    The filter is that of Pillow and of torch's ``antialias=True``: a triangle as wide as the scale, cut off at the
    box's edge. A box need not begin between two pixels: centres are counted from its edges, and the pixels that it
    touches take part. Values are rounded to whole levels before they are normalised, so that normalising here is
    exactly normalising a batch of uint8.

    Args:
        images: n tensors (C, H, W) uint8 of any sizes and strides, on one device. C is 1 (which becomes three equal
            channels), 3, or 4 (the last one is left out).
        boxes: (n, 4) on the CPU: top, left, height, width in pixels; inside their pictures.
        flips: (n,) bool on the CPU: mirrored, left to right.
        size: Height and width of the result, or its side.
        mean: Of each channel, for levels in [0, 1]; is taken away. With ``std`` only.
        std: Of each channel; what is left is divided by it.
        dtype: uint8; or float32, float16, bfloat16: levels in [0, 1], or normalised.
        channels_last: Whether the channels of a pixel lie together.
        out: Gets the result; (n, 3, height, width) of that dtype, on that device, of any strides.
        kernel: Whether Triton does it; ``"auto"``: on CUDA devices where there is one, and its kernel works.

    Returns:
        (n, 3, height, width); ``out`` if it was given.

    Raises:
        ConfigurationError: An argument that cannot work, or a box outside its picture: nothing was read then.

    Ordering: On the current stream of the device; pictures made on another one must have been waited for, and be kept
        or recorded (`torch.Tensor.record_stream`) as for any other use.
    Thread-safety: Yes.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise ConfigurationError("a size is a positive number, or two of them", got=size)
    device = _check_images(images)
    wanted = _check_boxes(images, boxes, flips)
    multiply, add = _levels(mean, std, dtype)
    shape = (len(images), 3, height, width)
    if out is None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        out = torch.empty(shape, dtype=dtype, device=device, memory_format=layout)
    elif tuple(out.shape) != shape or out.dtype != dtype or out.device != device:
        found = tuple(out.shape), out.dtype, out.device
        raise ConfigurationError("out does not fit", expected=(shape, dtype, device), got=found)
    if not len(images):
        return out
    if _takes_kernel(kernel, device):
        _launch(images, wanted, out, multiply, add)
    else:
        for picture, box, into in zip(images, wanted, out, strict=True):
            _resize_one(picture, box, into, multiply, add)
    return out


def _takes_kernel(kernel: bool | Literal["auto"], device: torch.device) -> bool:
    return kernel is True or (kernel == "auto" and device.type == "cuda" and has_triton() and _works(device))


@cache
def _works(device: torch.device) -> bool:
    """Whether the kernel can be compiled and launched, by having it make a picture: Triton needs tools of the system's.

    Raises:
        torch.OutOfMemoryError, torch.AcceleratorError: The device itself fails.
    """
    level, side = 100, 32  # compiled for sizes like 224, which are multiples of 16 as well
    whole = _Axis.of(0, 2 * side)
    try:
        picture = torch.full((3, 2 * side, 2 * side), level, dtype=torch.uint8, device=device)
        out = torch.empty((1, 3, side, side), dtype=torch.uint8, device=device)
        _launch([picture], [_Wanted(whole, whole, False)], out, [1.0] * 3, [0.0] * 3)
        is_right = bool((out == level).all())
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:  # noqa: BLE001 - Triton's compiler has errors of many kinds, its tools others
        what = f"{type(error).__name__}: {error}"
        _log.warning("the kernel for crops cannot be used on %s, torch makes them one by one: %s", device, what)
        return False
    if not is_right:
        _log.warning("the kernel for crops does not work on %s; torch makes them one by one", device)
    return is_right


@dataclass(frozen=True, slots=True)
class _Axis:
    """What of a picture's rows, or columns, is seen.

    Attributes:
        lowest: First pixel that the box touches.
        num_pixels: That it touches.
        start: Where the box begins within the first one.
        extent: Of the box, in pixels.
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
        """The filter: (length, num_pixels) float32; each row sums to 1."""
        scale = self.extent / length
        support = max(scale, 1.0)
        centre = self.start + (torch.arange(length, device=device, dtype=torch.float32).unsqueeze(1) + 0.5) * scale
        pixel = torch.arange(self.num_pixels, device=device, dtype=torch.float32)
        seen = (pixel >= (centre - support + 0.5).floor()) & (pixel < (centre + support + 0.5).floor())
        weights = (1 - ((pixel + 0.5 - centre) / support).abs()).clamp_(min=0) * seen
        return weights / weights.sum(1, keepdim=True)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A checked box."""

    y: _Axis
    x: _Axis
    flip: bool


def _check_images(images: Sequence[torch.Tensor]) -> torch.device:
    for image in images:
        if image.dtype != torch.uint8 or image.dim() != 3 or image.shape[0] not in (1, 3, 4) or not image.numel():
            found = tuple(image.shape), image.dtype
            raise ConfigurationError("a picture is (C, H, W) uint8 with C = 1, 3 or 4", got=found)
        if image.device != images[0].device:
            raise ConfigurationError("pictures are on several devices", got=(images[0].device, image.device))
        if sum((sides - 1) * stride for sides, stride in zip(image.shape, image.stride(), strict=True)) > _MOST_BYTES:
            raise ConfigurationError("a picture is too large for one piece of memory", got=tuple(image.shape))
    return images[0].device if len(images) else torch.device("cpu")


def _check_boxes(images: Sequence[torch.Tensor], boxes: torch.Tensor, flips: torch.Tensor) -> list[_Wanted]:
    if boxes.device.type != "cpu" or flips.device.type != "cpu":
        raise ConfigurationError("boxes and flips must be on the CPU", got=(boxes.device, flips.device))
    if tuple(boxes.shape) != (len(images), 4) or tuple(flips.shape) != (len(images),) or flips.dtype != torch.bool:
        found = tuple(boxes.shape), tuple(flips.shape), flips.dtype
        raise ConfigurationError(f"{len(images)} pictures need (n, 4) boxes and (n,) bool flips", got=found)
    wanted = []
    for place, (image, (top, left, height, width), flip) in enumerate(
        zip(images, boxes.double().tolist(), flips.tolist(), strict=True)
    ):
        # Written so that not-a-number fails, too.
        fits = 0 <= top < top + height <= image.shape[1] and 0 <= left < left + width <= image.shape[2]
        if not fits:
            raise ConfigurationError(
                f"box {place} does not lie within its picture",
                expected=tuple(image.shape[1:]),
                got=(top, left, height, width),
            )
        wanted.append(_Wanted(_Axis.of(top, height), _Axis.of(left, width), flip))
    return wanted


def _levels(
    mean: Sequence[float] | None, std: Sequence[float] | None, dtype: torch.dtype
) -> tuple[list[float], list[float]]:
    """For each channel, what a level from 0 to 255 is multiplied by, and what is added then."""
    if dtype not in _DTYPES:
        raise ConfigurationError("dtype must be uint8, float32, float16 or bfloat16", got=dtype)
    if (mean is None) != (std is None):
        raise ConfigurationError("mean and std belong together", got=(mean, std))
    if mean is None or std is None:
        return ([1.0] * 3, [0.0] * 3) if dtype == torch.uint8 else ([1 / 255] * 3, [0.0] * 3)
    if dtype == torch.uint8:
        raise ConfigurationError("what is normalised is no uint8; give a dtype", got=dtype)
    if len(mean) != 3 or len(std) != 3 or not all(math.isfinite(each) for each in (*mean, *std)) or min(std) <= 0:
        raise ConfigurationError("mean and std are three numbers each, std positive", got=(mean, std))
    return [1 / (255 * each) for each in std], [-one / each for one, each in zip(mean, std, strict=True)]


def _resize_one(
    picture: torch.Tensor, wanted: _Wanted, out: torch.Tensor, multiply: Sequence[float], add: Sequence[float]
) -> None:
    y, x = wanted.y, wanted.x
    part = picture[:3, y.lowest : y.lowest + y.num_pixels, x.lowest : x.lowest + x.num_pixels].float()
    down, across = y.matrix(out.shape[1], picture.device), x.matrix(out.shape[2], picture.device)
    if wanted.flip:
        across = across.flip(0)
    levels = (down @ part @ across.T).add_(0.5).floor_().clamp_(0, 255)
    if out.dtype != torch.uint8:
        by_channel = torch.tensor([multiply, add], device=picture.device)[:, :, None, None]
        levels = levels * by_channel[0] + by_channel[1]
    out.copy_(levels)


def _launch(
    images: Sequence[torch.Tensor],
    wanted: Sequence[_Wanted],
    out: torch.Tensor,
    multiply: Sequence[float],
    add: Sequence[float],
) -> None:
    kernels: Any = import_module("concurrent_loader.augment.fused_kernel")
    device = out.device
    facts, places = _table(images, wanted)
    # One copy for both, so that there is one, and from page-locked memory, so that nobody waits for it.
    whole = torch.empty(facts.nbytes + places.nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    whole[: facts.nbytes] = torch.from_numpy(facts.view(np.uint8).reshape(-1))
    whole[facts.nbytes :] = torch.from_numpy(places.view(np.uint8).reshape(-1))
    there = whole.to(device, non_blocking=True)
    height, width = out.shape[2:]
    tiles = math.ceil(height / kernels.BLOCK_Y) * math.ceil(width / kernels.BLOCK_X)
    # Triton launches on the current device, whatever its arguments' is.
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
    images: Sequence[torch.Tensor], wanted: Sequence[_Wanted]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """What the kernel is told of each picture: (n, 8) whole numbers and (n, 4) others."""
    facts = np.zeros((len(images), 8), np.int64)
    places = np.empty((len(images), 4), np.float32)
    for at, (image, box) in enumerate(zip(images, wanted, strict=True)):
        channel, down, across = image.stride()
        begin = image.data_ptr() + box.y.lowest * down + box.x.lowest * across
        # Three equal channels of one: the next channel is the same one.
        step = channel if image.shape[0] > 1 else 0
        facts[at, :7] = begin, step, down, across, box.y.num_pixels, box.x.num_pixels, box.flip
        places[at] = box.y.start, box.x.start, box.y.extent, box.x.extent
    return facts, places
