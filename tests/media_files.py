"""Makes small audio and video files for the tests: tones, and frames whose brightness tells their number."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import av
import numpy as np

RATE = 16000
_CODECS = {"wav": "pcm_s16le", "flac": "flac", "mp3": "libmp3lame", "opus": "libopus"}
_CONTAINERS = {"opus": "ogg"}
_VIDEO_OPTIONS: dict[str, dict[str, str]] = {
    "libx264": {"preset": "ultrafast", "tune": "zerolatency"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:bframes=3:open-gop=1:keyint=12:min-keyint=12"},
}


@cache
def ramp(seconds: float = 2.0, *, channels: int = 1, rate: int = RATE) -> np.ndarray[Any, np.dtype[np.int16]]:
    """(channels, samples) int16: a sweep whose waveform differs everywhere, half as loud in a second channel."""
    time = np.arange(int(seconds * rate)) / rate
    wave = 0.5 * np.sin(2 * np.pi * (200 + 150 * time) * time)
    return np.round(np.stack([wave / (1 + channel) for channel in range(channels)]) * 32767).astype(np.int16)


@cache
def audio_file(kind: str, seconds: float = 2.0, *, channels: int = 1, rate: int = RATE) -> bytes:
    samples = ramp(seconds, channels=channels, rate=rate)
    layout = {1: "mono", 2: "stereo"}[channels]
    with av.open(file := io.BytesIO(), "w", format=_CONTAINERS.get(kind, kind)) as container:
        stream: Any = container.add_stream(_CODECS[kind], rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(samples.T.reshape(1, -1), format="s16", layout=layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.codec_context.format, layout, rate, frame_size=stream.frame_size or None)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return file.getvalue()


@cache
def video_file(
    kind: str = "mp4", num_frames: int = 60, *, group: int = 12, size: tuple[int, int] = (64, 96),
    codec: str | None = None, noise: int = 0, sound: bool = False, rotation: int = 0,
) -> bytes:  # fmt: skip
    """A video whose frame i has the brightness 20 + 3 * i (mod 216), with noise of some levels to fill bytes."""
    codec = codec or {"mp4": "libx264", "webm": "libvpx-vp9"}[kind]
    rng = np.random.default_rng(0)
    with av.open(file := io.BytesIO(), "w", format=kind) as container:
        stream: Any = container.add_stream(codec, rate=30, options=_VIDEO_OPTIONS.get(codec, {}))
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = group
        if rotation:
            stream.set_display_rotation(rotation)
        voice: Any = container.add_stream("aac", rate=RATE, layout="mono") if sound else None
        for number in range(num_frames):
            image = np.full((*size, 3), brightness(number), np.int16)
            if noise:
                image += rng.integers(-noise, noise + 1, (*size, 1), np.int16)
            frame = av.VideoFrame.from_ndarray(image.clip(0, 255).astype(np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
            if voice is not None:
                tone = av.AudioFrame.from_ndarray(ramp(0.032)[:, :512], format="s16", layout="mono")
                tone.sample_rate, tone.pts = RATE, number * 512
                container.mux(voice.encode(tone))
        container.mux(stream.encode(None))
        if voice is not None:
            container.mux(voice.encode(None))
    return file.getvalue()


def brightness(number: int) -> int:
    return 20 + 3 * number % 216
