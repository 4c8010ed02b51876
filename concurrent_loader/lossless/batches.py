"""From a batch of encoded lossless pictures to pixels on the device: between reading and augmenting.

On a CUDA device everything goes over in one copy and is decoded in one launch, whatever the pictures' sizes. Elsewhere,
and without Triton, `storage.lossless.decode` makes the same pixels, one picture after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch

from concurrent_loader.augment.fused import boxes_and_flips, crop_resize
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Box
from concurrent_loader.decode.header import Buffer
from concurrent_loader.errors import DecodeError
from concurrent_loader.lossless.planning import BatchPlan, plan_batch
from storage.errors import FormatError
from storage.lossless import decode

__all__ = ["decode_batch", "decode_crops", "launch"]


@cache
def _has_kernel() -> bool:
    try:
        import_module("concurrent_loader.lossless.kernel")
    except (ImportError, RuntimeError):
        return False
    return True


def decode_batch(
    files: Sequence[Buffer],
    boxes: Sequence[Box | None] | None = None,
    *,
    device: torch.device | str = "cpu",
    alpha: bool = False,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    kernel: bool | Literal["auto"] = "auto",
) -> list[torch.Tensor]:
    """Decodes a batch of lossless pictures, or a box of each.

    Args:
        files: Encoded pictures, of 8 bits.
        boxes: The part of each that is wanted; only its tiles are decoded. ``flip`` is not looked at.
        device: Where the pixels are to be.
        alpha: Whether an alpha channel is wanted, too.
        max_pixels: A larger picture is refused before anything is allocated.
        kernel: Whether Triton does it; ``"auto"``: for CUDA devices where there is one.

    Returns:
        For each picture (C, H, W) uint8: one row of tensors that share memory, on the device.

    Raises:
        DecodeError: A file or a box that `plan_batch` refuses; nothing was launched then.

    Ordering: On the device's current stream.
    Thread-safety: Yes.
    """
    device = torch.device(device)
    if kernel is True or (kernel == "auto" and device.type == "cuda" and _has_kernel()):
        return launch(plan_batch(files, boxes, alpha=alpha, max_pixels=max_pixels), device)
    made = []
    for at, data in enumerate(files):
        box = boxes[at] if boxes is not None else None
        place = None if box is None else (box.top, box.left, box.height, box.width)
        try:
            pixels = decode(data, box=place, alpha=alpha, max_pixels=max_pixels)
        except (FormatError, ValueError) as error:
            raise DecodeError(str(error), sample=at) from error
        if pixels.dtype != np.uint8:
            raise DecodeError("a batch is of 8 bits", sample=at, expected=8, got=16)
        made.append(torch.from_numpy(pixels).to(device))
    return made


def decode_crops(
    files: Sequence[Buffer],
    boxes: Sequence[Box],
    size: int | tuple[int, int],
    *,
    device: torch.device | str = "cpu",
    max_pixels: int = DEFAULT_MAX_PIXELS,
    kernel: bool | Literal["auto"] = "auto",
    **options: Any,
) -> torch.Tensor:
    """Decodes a box of each picture and makes one batch of them: tiles, crop, resize, mirror, normalise.

    Args:
        files: As for `decode_batch`.
        boxes: The part of each that is shown.
        size: Height and width of the result, or its side.
        device: Where it is to be.
        max_pixels: As for `decode_batch`.
        kernel: Whether Triton does it, both launches.
        **options: ``mean``, ``std``, ``dtype``, ``channels_last``, ``out`` of `concurrent_loader.augment.crop_resize`.

    Returns:
        (n, 3, height, width).

    Raises:
        DecodeError: As for `decode_batch`.
        ConfigurationError: As for `crop_resize`.
    """
    parts = decode_batch(files, boxes, device=device, max_pixels=max_pixels, kernel=kernel)
    whole = [Box(0, 0, box.height, box.width, box.flip) for box in boxes]
    return crop_resize(parts, *boxes_and_flips(whole), size, kernel=kernel, **options)


def launch(plan: BatchPlan, device: torch.device) -> list[torch.Tensor]:
    """Copies a plan's bytes to the device and decodes them there, in one launch."""
    num_bytes = len(plan.data)
    begin = -(-num_bytes // 8) * 8
    # One copy for all of it, from page-locked memory, so that nobody waits for it.
    whole = torch.empty(begin + plan.facts.nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    whole[:num_bytes] = torch.from_numpy(plan.data)
    whole[begin:] = torch.from_numpy(plan.facts.view(np.uint8).reshape(-1))
    there = whole.to(device, non_blocking=True)
    out = torch.empty(plan.starts[-1], dtype=torch.uint8, device=device)
    for plain in plan.plain:
        first, end = plan.starts[plain.picture], plan.starts[plain.picture + 1]
        out[first:end] = there[plain.start : plain.start + end - first]
    if len(plan.facts):
        kernels: Any = import_module("concurrent_loader.lossless.kernel")
        # Triton launches on the current device, whatever its arguments' is.
        with torch.cuda.device(device.index if device.type == "cuda" else -1):
            kernels.decode_tiles_kernel[(len(plan.facts),)](
                there[begin:].view(torch.int64), there, out, num_warps=kernels.NUM_WARPS
            )
    return [
        out[first:end].view(shape) for first, end, shape in zip(plan.starts, plan.starts[1:], plan.shapes, strict=False)
    ]
