from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from concurrent_loader.storage import FormatError
from concurrent_loader.storage.media.wav import parse_wav


def wav(samples: np.ndarray[Any, Any], *, tag: int = 1, bits: int = 0, rate: int = 8000, extra: bytes = b"") -> bytes:
    """A WAV file of (n, channels) samples; 24 bits take the upper three bytes of int32."""
    bits = bits or samples.dtype.itemsize * 8
    data = samples.tobytes() if bits != 24 else samples.astype("<i4").view("u1").reshape(-1, 4)[:, 1:].tobytes()
    width = samples.shape[1] * bits // 8
    form = struct.pack("<HHIIHH", tag, samples.shape[1], rate, rate * width, width, bits) + extra
    chunks = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # of odd length, so a byte of padding follows
    chunks += b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


EXTENSIBLE = struct.pack("<HHIH", 22, 16, 3, 1) + bytes(14)
WAVE = np.linspace(-1, 1, 40, dtype=np.float64).reshape(20, 2)


@pytest.mark.parametrize(
    ("data", "step"),
    [
        (wav(np.round(WAVE * 127 + 128).astype("u1")), 1 / 127),
        (wav(np.round(WAVE * 32767).astype("<i2")), 1 / 32767),
        (wav(np.round(WAVE * (2**31 - 1)).astype("<i4"), bits=24), 2**-22),
        (wav(np.round(WAVE * (2**31 - 1)).astype("<i4")), 1e-7),
        (wav(WAVE.astype("<f4"), tag=3), 1e-7),
        (wav(WAVE, tag=3), 1e-7),
        (wav(np.round(WAVE * 32767).astype("<i2"), tag=0xFFFE, extra=EXTENSIBLE), 1e-4),
    ],
    ids=["8", "16", "24", "32", "float", "double", "extensible"],
)  # fmt: skip
def test_pcm_of_every_width(data: bytes, step: float) -> None:
    file = parse_wav(data)
    assert file is not None
    assert (file.rate, file.num_channels, file.num_samples) == (8000, 2, 20)
    whole = file.read(0, 20)
    assert whole.dtype == np.float32
    assert whole.shape == (2, 20)
    assert whole.flags.c_contiguous
    np.testing.assert_allclose(whole, WAVE.T, atol=2 * step)
    np.testing.assert_array_equal(file.read(3, 9), whole[:, 3:9])
    assert file.read(18, 30).shape == (2, 2)  # the file's end counts


def test_compressed_samples_are_left_to_a_library() -> None:
    assert parse_wav(wav(np.zeros((4, 1), "u1"), tag=7)) is None


def test_a_header_cut_anywhere_is_an_error() -> None:
    data = wav(np.zeros((4, 1), "<i2"))
    start = len(data) - 8
    for length in range(start):
        with pytest.raises(FormatError):
            parse_wav(data[:length])
    file = parse_wav(data[: start + 5])  # cut in the samples: only whole ones count
    assert file is not None
    assert file.num_samples == 2


def test_a_file_without_channels_or_rate_is_an_error() -> None:
    with pytest.raises(FormatError, match="no channels"):
        parse_wav(wav(np.zeros((4, 1), "<i2"), rate=0))
