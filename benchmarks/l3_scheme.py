"""L3's way of storing a picture, written anew in numpy to know its size; not its authors' program, and no CUDA.

Source: J. Bae, W. Baek, T. J. Ham, J. W. Lee, "L3: Accelerator-Friendly Lossless Image Format for High-Resolution,
High-Throughput DNN Training", ECCV 2022 (arXiv 2208.08711): patches of N by N samples of one channel; each row as
differences from the row above; of each row the least difference, and the bits that the others need above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["L3Picture", "decode_l3", "encode_l3"]

_SIDE = 16
_BASE_BITS, _WIDTH_BITS = 9, 4


@dataclass(frozen=True, slots=True)
class L3Picture:
    """A picture in patches.

    Attributes:
        shape: (C, H, W).
        first: (patches, N) uint8, each patch's first row.
        bases: (patches, N - 1) int16, the least difference of each further row.
        widths: (patches, N - 1) uint8, bits of each of its values.
        packed: For each width that occurs, the rows' values in so many bits.
    """

    shape: tuple[int, int, int]
    first: npt.NDArray[np.uint8]
    bases: npt.NDArray[np.int16]
    widths: npt.NDArray[np.uint8]
    packed: dict[int, npt.NDArray[np.uint8]]

    @property
    def num_bytes(self) -> int:
        """Of a file: first rows, a base and a width for each further row, and the values."""
        heads = self.bases.size * (_BASE_BITS + _WIDTH_BITS)
        return self.first.size + -(-heads // 8) + sum(part.size for part in self.packed.values())


def encode_l3(pixels: npt.NDArray[np.uint8]) -> L3Picture:
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
    return L3Picture(pixels.shape, patches[:, 0].copy(), bases, widths, packed)


def decode_l3(picture: L3Picture) -> npt.NDArray[np.uint8]:
    """Decodes to (C, H, W)."""
    channels, height, width = picture.shape
    steps: npt.NDArray[Any] = np.zeros((*picture.widths.shape, _SIDE), np.int16)
    for bits, part in picture.packed.items():
        single = np.unpackbits(part, axis=1).reshape(len(part), _SIDE, bits).astype(np.int16)
        steps[picture.widths == bits] = (single << np.arange(bits, dtype=np.int16)).sum(axis=2, dtype=np.int16)
    steps += picture.bases[:, :, np.newaxis]
    patches = np.concatenate((picture.first[:, np.newaxis].astype(np.int16), steps), axis=1)
    samples = np.cumsum(patches, axis=1, dtype=np.int16).astype(np.uint8)
    down, across = -(-height // _SIDE), -(-width // _SIDE)
    whole = samples.reshape(channels, down, across, _SIDE, _SIDE).swapaxes(2, 3)
    pixels: npt.NDArray[np.uint8] = whole.reshape(channels, down * _SIDE, across * _SIDE)[:, :height, :width]
    return pixels
