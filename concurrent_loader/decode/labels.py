"""Decodes masks: the stored numbers, which the decoders of images would turn into colors or stretch to 8 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.decode.backends import pillow
from concurrent_loader.decode.backends.libraries import Backend
from concurrent_loader.decode.header import Buffer, parse_header
from concurrent_loader.decode.registry import check_header, formats_of, make_decoder
from concurrent_loader.storage.images import DEFAULT_MAX_PIXELS

__all__ = ["make_label_decoder"]

_STRETCH = {1: 255, 2: 85, 4: 17}  # what decoders multiply gray levels of few bits by


def make_label_decoder(
    column_type: str, *, backend: Backend = "auto", max_pixels: int = DEFAULT_MAX_PIXELS
) -> Callable[[Buffer], npt.NDArray[np.uint8 | np.int32]]:
    """Makes a function that decodes the masks of a column.

    Args:
        column_type: Type of the column, as for `concurrent_loader.decode.make_decoder`.
        backend: Image library, as for `concurrent_loader.decode.make_decoder`.
        max_pixels: Maximum number of pixels of a mask.

    Returns:
        A function from encoded bytes to (H, W) labels, or (C, H, W) for color. Labels are the numbers in the file:
        indices of a palette, gray levels. uint8, or int32 for 16 bits. The function raises `DecodeError`.

    Raises:
        ConfigurationError: An argument is invalid, or no installed library decodes the column.

    Thread-safety: The function may be called from any number of threads.
    """
    formats = formats_of(column_type)
    decode = make_decoder("unchanged", column_type, backend=backend, max_pixels=max_pixels)

    def decode_labels(data: Buffer) -> npt.NDArray[np.uint8 | np.int32]:
        header = parse_header(data)
        if header.palette:
            check_header(header, formats, max_pixels, memoryview(data).nbytes)
            return pillow.decode(data, header, "INDICES")[0].numpy()
        labels = decode(data)
        if header.format == "png" and header.bits in _STRETCH and header.num_channels == 1:
            labels = labels // _STRETCH[header.bits]
        labels = labels.to(torch.int32) if labels.dtype == torch.uint16 else labels
        return (labels[0] if len(labels) == 1 else labels).numpy()

    return decode_labels
