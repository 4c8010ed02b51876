"""L3's way of storing an image, written again in numpy to know its size; not its authors' program, and no CUDA.

Source: J. Bae, W. Baek, T. J. Ham, J. W. Lee, "L3: Accelerator-Friendly Lossless Image Format for High-Resolution,
High-Throughput DNN Training", ECCV 2022 (arXiv 2208.08711): patches of N by N samples of one channel; each row as
differences from the row above; of each row the least difference, and the bits that the others need above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_SIDE = 16
_BASE_BITS, _WIDTH_BITS = 9, 4


@dataclass(frozen=True, slots=True)
class L3Image:
    """An image in patches."""

    shape: tuple[int, int, int]  # (C, H, W)
    first: npt.NDArray[np.uint8]  # (patches, N) uint8, each patch's first row
    bases: npt.NDArray[np.int16]  # (patches, N - 1) int16, the least difference of each further row
    widths: npt.NDArray[np.uint8]  # (patches, N - 1) uint8, bits of each of its values
    packed: dict[int, npt.NDArray[np.uint8]]  # for each width that occurs, the rows' values in so many bits

    @property
    def num_bytes(self) -> int:
        """Of a file: first rows, a base and a width for each further row, and the values."""
        heads = self.bases.size * (_BASE_BITS + _WIDTH_BITS)
        return self.first.size + -(-heads // 8) + sum(part.size for part in self.packed.values())


def encode_l3(pixels: npt.NDArray[np.uint8]) -> L3Image:
    """Encodes (C, H, W); sides are filled up to whole patches."""
    channels, height, width = pixels.shape
    down, across = -(-height // _SIDE), -(-width // _SIDE)
    room = np.pad(pixels, ((0, 0), (0, down * _SIDE - height), (0, across * _SIDE - width)), mode="edge")
    patches = room.reshape(channels, down, _SIDE, across, _SIDE).swapaxes(2, 3).reshape(-1, _SIDE, _SIDE)
    steps = np.diff(patches.astype(np.int16), axis=1)
    bases = steps.min(axis=2)
    above = (steps - bases[:, :, np.newaxis]).astype(np.uint16)
    widths = np.frexp(above.max(axis=2).astype(np.float32))[1].astype(np.uint8)
    packed = {}
    for bits in np.unique(widths[widths > 0]).tolist():
        single = (above[widths == bits][:, :, np.newaxis] >> np.arange(bits, dtype=np.uint16)) & 1
        packed[bits] = np.packbits(single.reshape(len(single), -1).astype(np.uint8), axis=1)
    return L3Image(pixels.shape, patches[:, 0].copy(), bases, widths, packed)


def decode_l3(image: L3Image) -> npt.NDArray[np.uint8]:
    """Decodes to (C, H, W)."""
    channels, height, width = image.shape
    steps: npt.NDArray[Any] = np.zeros((*image.widths.shape, _SIDE), np.int16)
    for bits, part in image.packed.items():
        single = np.unpackbits(part, axis=1).reshape(len(part), _SIDE, bits).astype(np.int16)
        steps[image.widths == bits] = (single << np.arange(bits, dtype=np.int16)).sum(axis=2, dtype=np.int16)
    steps += image.bases[:, :, np.newaxis]
    patches = np.concatenate((image.first[:, np.newaxis].astype(np.int16), steps), axis=1)
    samples = np.cumsum(patches, axis=1, dtype=np.int16).astype(np.uint8)
    down, across = -(-height // _SIDE), -(-width // _SIDE)
    whole = samples.reshape(channels, down, across, _SIDE, _SIDE).swapaxes(2, 3)
    pixels: npt.NDArray[np.uint8] = whole.reshape(channels, down * _SIDE, across * _SIDE)[:, :height, :width]
    return pixels
