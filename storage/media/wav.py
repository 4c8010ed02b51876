"""Reads PCM from WAV files with NumPy, so that WAV works without FFmpeg and a part costs no more than its bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images.header import Buffer

__all__ = ["PcmFile", "parse_wav", "to_float"]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_DTYPES = {(_PCM, 8): "u1", (_PCM, 16): "<i2", (_PCM, 24): "u1", (_PCM, 32): "<i4", (_FLOAT, 32): "<f4",
           (_FLOAT, 64): "<f8"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PcmFile:
    """Samples of a WAV file that are not compressed.

    Attributes:
        rate: Samples per second.
        num_channels: Number of channels.
        bits: Bits of a sample: 8, 16, 24, 32 or 64.
        num_samples: Number of samples of each channel.
        dtype: NumPy's name of a sample; bytes for 24 bits.
        data: Bytes of the samples, channel by channel within a sample.
    """

    rate: int
    num_channels: int
    bits: int
    num_samples: int
    dtype: str
    data: memoryview

    def read(self, start: int, end: int) -> npt.NDArray[np.float32]:
        """Returns the samples [start, end) as (num_channels, n) float32 from -1 to 1."""
        width = self.num_channels * self.bits // 8
        part = np.frombuffer(self.data[start * width : min(end, self.num_samples) * width], self.dtype)
        if self.bits == 24:
            wide = np.zeros((len(part) // 3, 4), np.uint8)
            wide[:, 1:] = part.reshape(-1, 3)
            part = wide.view("<i4")[:, 0]
        return np.ascontiguousarray(to_float(part).reshape(-1, self.num_channels).T)


def to_float(samples: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Returns samples of any dtype as float32 from -1 to 1."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    middle = 0 if samples.dtype.kind == "i" else 128
    return (samples.astype(np.float32) - middle) / np.float32(2 ** (8 * samples.dtype.itemsize - 1))


def parse_wav(data: Buffer) -> PcmFile | None:
    """Finds the samples of a WAV file; returns None if they are compressed.

    Raises:
        FormatError: The file is no WAV file, or ends within its header.
    """
    view = memoryview(data).cast("B")
    if bytes(view[:4]) != b"RIFF" or bytes(view[8:12]) != b"WAVE":
        raise FormatError("the file is no WAV file", got=bytes(view[:12]))
    at, form = 12, None
    while at + 8 <= len(view):
        (length,) = struct.unpack_from("<I", view, at + 4)
        body = view[at + 8 : at + 8 + length]
        name = bytes(view[at : at + 4])
        if name == b"fmt ":
            if len(body) < 16:
                break
            form = struct.unpack_from("<HHIIHH", body)
            if form[0] == _EXTENSIBLE and len(body) >= 26:
                form = (struct.unpack_from("<H", body, 24)[0], *form[1:])
        elif name == b"data":
            if form is None:
                break
            tag, num_channels, rate, _, _, bits = form
            if (tag, bits) not in _DTYPES:
                return None
            if not num_channels or not rate:
                raise FormatError("the WAV file has no channels, or no sample rate", got=(num_channels, rate))
            # A stream's header may announce more than there is: the file's end counts.
            num_samples = len(body) // (num_channels * bits // 8)
            return PcmFile(rate, num_channels, bits, num_samples, _DTYPES[tag, bits], body)
        at += 8 + length + length % 2
    raise FormatError("the WAV file ends within its header", got=f"{len(view)} bytes")
