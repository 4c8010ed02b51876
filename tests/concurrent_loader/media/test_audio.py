from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from concurrent_loader import Audio, ConfigurationError, DecodeError
from concurrent_loader.media import PartDecoder, part_decoder
from concurrent_loader.media import audio as audio_module

KINDS = ("wav", "flac", "mp3", "opus")


def decode(how: Audio, data: bytes, draw: float = 0.0) -> torch.Tensor:
    return how.decode(data, draw, max_pixels=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_file_is_decoded_to_what_was_encoded(media: Any, kind: str) -> None:
    rate = 48000 if kind == "opus" else 16000  # what FFmpeg decodes Opus to
    found = Audio()(media.audio_file(kind, channels=2, rate=rate))
    expected = media.ramp(channels=2, rate=rate) / 32768
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    error = np.abs(found.numpy() - expected).mean()
    assert error < (1e-4 if kind in ("wav", "flac") else 0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_equals_that_part_of_the_whole(media: Any, kind: str) -> None:
    rate = 48000 if kind == "opus" else 16000
    data = media.audio_file(kind, 4.0, rate=rate)
    whole = Audio()(data).numpy()[0]
    places = []
    for draw in (0.0, 0.3, 0.8):
        part = decode(Audio(seconds=0.5), data, draw).numpy()
        assert part.shape == (1, rate // 2)
        middle = part[0, :400]
        # The tone rises all the time, so that its places differ.
        near = range(max(0, int(draw * 3.5 * rate) - 700), int(draw * 3.5 * rate) + 700)
        errors = [float(np.abs(whole[at : at + 400] - middle).max()) for at in near]
        places.append(near[int(np.argmin(errors))])
        assert min(errors) < 1e-3  # Opus converges after a seek
        np.testing.assert_allclose(part[0], whole[places[-1] : places[-1] + rate // 2], atol=1e-3)
    np.testing.assert_allclose(places, [0, 0.3 * 3.5 * rate, 0.8 * 3.5 * rate], atol=700)


@pytest.mark.parametrize("kind", ["flac", "mp3", "opus"])
def test_a_part_is_decoded_without_what_is_before_it(media: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = media.audio_file(kind, 4.0)
    decoded: list[int] = []
    real = audio_module.open_media

    class Container:
        def __init__(self, container: Any) -> None:
            self.container, self.streams, self.seek = container, container.streams, container.seek

        def decode(self, stream: Any) -> Iterator[Any]:
            for frame in self.container.decode(stream):
                decoded.append(frame.samples * 16000 // frame.sample_rate)
                yield frame

    @contextmanager
    def watched(data: bytes) -> Iterator[Container]:
        with real(data) as container:
            yield Container(container)

    monkeypatch.setattr(audio_module, "open_media", watched)
    decode(Audio(seconds=0.25), data, 0.99)
    assert sum(decoded) < 2 * 16000  # half a second before the part, and pages of Ogg have a second


def test_resampled_audio_keeps_its_tone(media: Any) -> None:
    data = media.audio_file("wav", channels=2)
    for how, shape in (
        (Audio(sample_rate=8000), (2, 16000)),
        (Audio(sample_rate=8000, seconds=1.5, channels=1), (1, 12000)),
        (Audio(sample_rate=44100, seconds=0.5), (2, 22050)),
    ):
        found = decode(how, data)
        assert found.shape == shape
        source = media.ramp(channels=2) / 32768
        source = source if how.channels is None else source.mean(axis=0, keepdims=True)
        times = np.arange(shape[1]) / how.sample_rate * 16000
        expected = np.stack([np.interp(times, np.arange(source.shape[1]), channel) for channel in source])
        assert np.abs(found.numpy() - expected)[:, 50:-50].mean() < 0.01


def test_short_audio_is_followed_by_zeros_and_channels_are_mixed(media: Any) -> None:
    data = media.audio_file("wav")
    found = decode(Audio(seconds=3, channels=2), data, 0.5)
    assert found.shape == (2, 48000)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0, :32000], Audio()(data)[0])
    assert not found[:, 32000:].any()
    with pytest.raises(DecodeError, match="only mono audio"):
        decode(Audio(channels=3), media.audio_file("wav", channels=2))


def test_the_start_of_a_part(media: Any) -> None:
    data = media.audio_file("wav", 4.0)
    whole = Audio()(data)
    assert torch.equal(decode(Audio(seconds=1, start="start"), data, 0.9), whole[:, :16000])
    assert torch.equal(decode(Audio(seconds=1, start="center"), data, 0.9), whole[:, 24000:40000])
    assert torch.equal(Audio(seconds=1)(data), whole[:, 24000:40000])


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_audio_raises_decode_errors_alone(media: Any, kind: str) -> None:
    data, rng = media.audio_file(kind), np.random.default_rng(0)
    decoder = PartDecoder(Audio(seconds=0.5, sample_rate=8000), kind, seed=0)
    (decode_first,) = decoder.decoders(0, np.array([3]))
    cases = [data[:length] for length in (0, 3, 20, 40, len(data) // 2)]
    for place in rng.integers(0, min(len(data), 300), 25).tolist():
        cases.append(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
    results = 0
    for case in cases:
        try:
            results += decode_first(case).shape[1] == 4000
        except DecodeError:
            continue
    assert 0 < results < len(cases)


def test_audio_that_would_take_too_much_memory_is_refused(media: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DecodeError, match="too long"):
        decode(Audio(seconds=2**30), media.audio_file("flac"))
    monkeypatch.setattr(audio_module, "MAX_BYTES", 100_000)
    for kind in KINDS:
        with pytest.raises(DecodeError, match="pass seconds="):
            decode(Audio(), media.audio_file(kind))
    with pytest.raises(DecodeError, match="too long"):
        decode(Audio(seconds=0.5, sample_rate=96000), media.audio_file("wav"))


def test_other_bytes_are_no_audio(media: Any) -> None:
    for data in (b"", b"text", media.video_file()):
        with pytest.raises(DecodeError, match="not audio of a known format"):
            decode(Audio(), data)


def test_wav_needs_no_pyav(media: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ConfigurationError("audio and video need PyAV")

    data = media.audio_file("wav")
    monkeypatch.setattr(part_decoder, "load_av", fail)
    (decode_first,) = PartDecoder(Audio(seconds=1), "wav", seed=0).decoders(0, np.array([0]))
    assert decode_first(data).shape == (1, 16000)
    with pytest.raises(ConfigurationError, match="PyAV"):
        PartDecoder(Audio(seconds=1), "flac", seed=0)


@pytest.mark.parametrize(
    "arguments", [{"seconds": 0}, {"sample_rate": 1.5}, {"channels": True}, {"start": "end"}, {"seconds": float("nan")}]
)
def test_invalid_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Audio(**arguments)


def test_a_part_that_is_no_clip_has_no_groups_of_pictures() -> None:
    assert not Audio().is_clip
    with pytest.raises(ConfigurationError, match="Audio has no groups of pictures to choose; pass the bytes"):
        Audio().choose(0.5, None)  # type: ignore[arg-type]  # no index is looked at


@pytest.mark.parametrize("num_samples", [1, 2, 10, 100])
def test_very_short_audio_is_resampled(num_samples: int) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(48000)
        writer.writeframes(bytes(2 * num_samples))
    assert Audio(sample_rate=8000)(file.getvalue()).shape[1] <= 1 + num_samples // 6 + 16
    assert Audio(sample_rate=8000, seconds=0.1)(file.getvalue()).shape == (1, 800)
