"""Draws which part of each audio or video file is decoded: connects `Audio` and `Clips` with the decode threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment import uniforms
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Decoder
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.errors import ConfigurationError, FormatError
from concurrent_loader.storage.media import ClipIndex, load_av

__all__ = ["PartDecoder", "PartOf", "Start", "check_start"]

Start = Literal["random", "center", "start"]
"""Place of a part in its file."""

MAX_BYTES = 2 << 30  # of one decoded part


class PartOf(ABC):
    """Chooses the part of a file that is decoded. `Audio` and `Clips` are the parts of this package.

    Attributes:
        column_types: Types of the columns whose values it decodes.
    """

    column_types: ClassVar[frozenset[str]]

    @abstractmethod
    def decode(self, data: Any, draw: float, *, max_pixels: int) -> torch.Tensor:
        """Decodes a part.

        Args:
            data: Bytes of the file, or an `EncodedClip` of a video.
            draw: Random number in [0, 1) that says where the part starts.
            max_pixels: Maximum number of pixels of a frame.

        Raises:
            DecodeError: The file is damaged, too large, or has another format.
        """

    def choose(self, draw: float, index: ClipIndex) -> tuple[int, int]:
        """Returns the first and the last group of pictures that `decode` needs for the same random number.

        Raises:
            ConfigurationError: The part is not a clip (`is_clip`): `decode` needs the whole file.
        """
        told = (
            f"{type(self).__name__} has no groups of pictures to choose; pass the bytes of the whole file to `decode`"
        )
        raise ConfigurationError(told, expected="a part with is_clip", got=self)

    @property
    def is_clip(self) -> bool:
        """Whether the bytes of the part can be fetched alone, by `choose`."""
        return False

    def __call__(self, data: bytes) -> torch.Tensor:
        """Decodes the part in the middle of the file, or at its start with ``start="start"``."""
        return self.decode(data, 0.5, max_pixels=DEFAULT_MAX_PIXELS)


def check_start(start: object) -> None:
    """Checks the place of a part.

    Raises:
        ConfigurationError: The place is unknown.
    """
    if start not in get_args(Start):
        raise ConfigurationError("start must be 'random', 'center' or 'start'", got=start)


class PartDecoder:
    """Decodes a part of each file of a column.

    Args:
        part: What to decode.
        column_type: Type of the column.
        seed: Seed of the random numbers.
        max_pixels: Maximum number of pixels of a frame.

    Raises:
        ConfigurationError: The column holds no such files, or PyAV is needed and not installed.

    Thread-safety: All methods may be called from any number of threads.
    """

    def __init__(self, part: PartOf, column_type: str, *, seed: int, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
        if column_type not in part.column_types:
            raise ConfigurationError(
                f"{type(part).__name__} does not decode a column of this type", expected=sorted(part.column_types),
                got=column_type,
            )  # fmt: skip
        if column_type != "wav":
            load_av()
        self.part = part
        self._seed = seed
        self._max_pixels = max_pixels

    def draws(self, epoch: int, samples: npt.NDArray[np.int64]) -> list[float]:
        """Returns the random number of each sample, in [0, 1): a hash of (seed, epoch, sample)."""
        drawn: list[float] = uniforms(self._seed, epoch, samples, 1, use="part")[:, 0].tolist()
        return drawn

    def decoders(self, epoch: int, samples: npt.NDArray[np.int64]) -> list[Decoder]:
        """Returns a decoder for each sample: encoded bytes → tensor."""
        return [partial(self._decode, draw) for draw in self.draws(epoch, samples)]

    def chooser(self, epoch: int) -> Callable[[int, ClipIndex], tuple[int, int]]:
        """Returns the function of a sample's number and index that chooses the groups of pictures of its clip."""

        def choose(sample: int, index: ClipIndex) -> tuple[int, int]:
            return self.part.choose(self.draws(epoch, np.array([sample]))[0], index)

        return choose

    def _decode(self, draw: float, data: Any) -> torch.Tensor:
        try:
            return self.part.decode(data, draw, max_pixels=self._max_pixels)
        except FormatError as error:
            raise DecodeError(error.what, expected=error.expected, got=error.got) from error
