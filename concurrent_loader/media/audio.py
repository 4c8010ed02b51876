"""Decodes audio to float32 samples: whole files, or some seconds of each, at one sample rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.errors import DecodeError
from concurrent_loader.media.part_decoder import MAX_BYTES, PartOf, Start, check_start
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.media import MEDIA_COLUMNS, find_media_format, load_av, open_media
from concurrent_loader.storage.media.wav import PcmFile, parse_wav, to_float

__all__ = ["Audio"]

# Decoded before a part and dropped. Opus needs 80 ms after a seek. A frame of MP3 may use the 511 bytes before it,
# which are half a second at the lowest rates.
_PREROLL_S = 0.5
_Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Audio(PartOf):
    """Decodes audio to (channels, samples) float32, from -1 to 1: ``decode={"audio": Audio(sample_rate=16000)}``.

    With ``seconds``, only these seconds are decoded, and all samples of a dataset have the same shape; shorter audio is
    followed by zeros. Without, lengths differ: the column is a list of tensors, or what ``ragged=`` says.

    Args:
        sample_rate: Samples per second of the result; that of the file by default. Another rate is resampled by FFmpeg.
        seconds: Length of the part in seconds; the whole file by default.
        channels: Channels of the result: 1 averages the file's channels, other numbers repeat a mono file. Default: as
            in the file.
        start: Place of the part: ``"random"`` (default) draws it for each (seed, epoch, sample); ``"center"``,
            ``"start"``.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> import io, wave
        >>> from concurrent_loader import Audio
        >>> with wave.open(file := io.BytesIO(), "wb") as writer:
        ...     writer.setparams((1, 2, 8000, 0, "NONE", ""))
        ...     writer.writeframes(bytes(2 * 8000))
        >>> Audio(seconds=0.5)(file.getvalue()).shape
        torch.Size([1, 4000])
    """

    column_types: ClassVar[frozenset[str]] = frozenset({"bytes", "audio", *MEDIA_COLUMNS["audio"]})

    sample_rate: int | None = None
    seconds: float | None = None
    channels: int | None = None
    start: Start = "random"

    def __post_init__(self) -> None:
        check_start(self.start)
        for name in ("sample_rate", "seconds", "channels"):
            value = getattr(self, name)
            kinds = (int, float) if name == "seconds" else (int,)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 2**31):
                raise ConfigurationError(f"{name} must be a positive number", got=value)

    def decode(self, data: Any, draw: float, *, max_pixels: int) -> torch.Tensor:
        """Decodes the audio, or a part of it; see `PartOf.decode`. Releases the GIL while FFmpeg works."""
        found = find_media_format(data)
        if found is None or found.kind != "audio":
            raise DecodeError("the value is not audio of a known format", got=bytes(memoryview(data)[:12]))
        share = {"random": draw, "center": 0.5, "start": 0.0}[self.start]
        pcm = parse_wav(data) if found.name == "wav" else None
        samples, rate = self._read_pcm(pcm, share) if pcm is not None else self._read(data, share)
        samples = _mix(samples, self.channels)
        wanted = self.sample_rate or rate
        if wanted != rate:
            _check_size(math.ceil(samples.shape[1] / rate * wanted), len(samples))
            samples = np.stack([_resample(channel, rate, wanted) for channel in samples])
        if self.seconds is not None:
            length = round(self.seconds * wanted)
            samples = np.pad(samples[:, :length], ((0, 0), (0, max(0, length - samples.shape[1]))))
        return torch.from_numpy(np.ascontiguousarray(samples))

    def _length(self, rate: int, num_channels: int) -> int | None:
        """Returns the number of samples to read; None for all."""
        if self.seconds is None:
            return None
        # One more sample, because resampling takes the next one, too.
        length = math.ceil(self.seconds * rate) + (self.sample_rate not in (None, rate))
        _check_size(length, num_channels)
        return length

    def _read_pcm(self, pcm: PcmFile, share: float) -> tuple[_Samples, int]:
        length = self._length(pcm.rate, pcm.num_channels)
        first = 0 if length is None else int(share * (max(0, pcm.num_samples - length) + 1))
        end = pcm.num_samples if length is None else min(first + length, pcm.num_samples)
        _check_size(end - first, pcm.num_channels)
        if end <= first:
            raise DecodeError("the file has no audio")
        return pcm.read(first, end), pcm.rate

    def _read(self, data: Any, share: float) -> tuple[_Samples, int]:
        with open_media(data) as container:
            if not container.streams.audio:
                raise DecodeError("the file has no audio")
            stream = container.streams.audio[0]
            codec = stream.codec_context
            if codec is None or not codec.sample_rate or not codec.channels:
                raise DecodeError("the audio has an unknown codec, no channels or no sample rate")
            stream.thread_type = "NONE"  # the loader has threads of its own
            rate, num_channels = codec.sample_rate, codec.channels
            length = self._length(rate, num_channels)
            first = 0
            if length is not None and stream.duration:
                total = int(stream.duration * stream.time_base * rate)
                first = int(share * (max(0, total - length) + 1))
                if first > _PREROLL_S * rate:
                    target = int((first / rate - _PREROLL_S) / stream.time_base) + (stream.start_time or 0)
                    container.seek(target, stream=stream)
            pieces = list(_pieces(container, stream, first, length))
        if not pieces:
            raise DecodeError("the file has no audio where it should be")
        return np.concatenate(pieces, axis=1), rate


def _pieces(container: Any, stream: Any, first: int, length: int | None) -> Iterator[_Samples]:
    """Decodes frames, and yields what of each lies within the part."""
    rate, num_channels = stream.codec_context.sample_rate, stream.codec_context.channels
    place, total = None, 0
    for frame in container.decode(stream):
        if (frame.sample_rate, frame.layout.nb_channels) != (rate, num_channels):
            raise DecodeError(
                "the audio changes its sample rate or channels", got=(frame.sample_rate, frame.layout.name)
            )
        if place is None:
            # MP3 and Opus start later than 0, by samples that the encoder put in front and the decoder drops.
            has_place = frame.pts is not None and length is not None
            place = round((frame.pts - (stream.start_time or 0)) * frame.time_base * rate) if has_place else 0
        end = place + frame.samples
        if length is None or end > first:
            array = frame.to_ndarray()
            planar = array if frame.format.is_planar else array.reshape(-1, num_channels).T
            skipped = 0 if length is None else max(0, first - place)
            piece = to_float(planar[:, skipped : None if length is None else first + length - place])
            total += piece.shape[1]
            _check_size(total, num_channels)
            yield piece
        place = end
        if length is not None and place >= first + length:
            return


def _check_size(num_samples: int, num_channels: int) -> None:
    if num_samples * num_channels * 4 > MAX_BYTES:
        raise DecodeError(
            "the audio is too long to decode; pass seconds= for a part of it", expected=f"at most {MAX_BYTES} bytes",
            got=(num_channels, num_samples),
        )  # fmt: skip


def _mix(samples: _Samples, channels: int | None) -> _Samples:
    if channels is None or channels == len(samples):
        return samples
    if channels == 1:
        mono: _Samples = samples.mean(axis=0, keepdims=True, dtype=np.float32)
        return mono
    if len(samples) == 1:
        return np.repeat(samples, channels, axis=0)
    raise DecodeError("only mono audio becomes more channels", expected=channels, got=len(samples))


def _resample(channel: _Samples, rate: int, wanted: int) -> _Samples:
    av = load_av()
    try:
        resampler = av.AudioResampler(format="fltp", layout="mono", rate=wanted)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(channel[None]), format="fltp", layout="mono")
        frame.sample_rate = rate
        frames = [*resampler.resample(frame), *resampler.resample(None)]
    except (av.FFmpegError, ValueError) as error:
        raise DecodeError("the audio cannot be resampled", expected=wanted, got=rate) from error
    if not frames:  # fewer samples than the resampler's filter has
        return np.zeros(round(len(channel) * wanted / rate), np.float32)
    return np.concatenate([each.to_ndarray()[0] for each in frames])
