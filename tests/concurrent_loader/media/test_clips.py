from __future__ import annotations

import io
from typing import Any

import av
import numpy as np
import pytest
import torch

from concurrent_loader import Clips, ConfigurationError, DecodeError
from concurrent_loader.media import PartDecoder
from concurrent_loader.media import clips as clips_module
from concurrent_loader.storage.media import ClipIndex, EncodedClip, clip_index


def decode(how: Clips, data: object, draw: float = 0.5, max_pixels: int = 10**6) -> torch.Tensor:
    return how.decode(data, draw, max_pixels=max_pixels)


def all_frames(data: bytes) -> torch.Tensor:
    """The frames of a file as FFmpeg decodes it from its beginning: (n, 3, H, W)."""
    with av.open(io.BytesIO(data)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    "options",
    [{}, {"kind": "webm"}, {"codec": "libx265"}, {"codec": "mpeg4"}, {"sound": True}],
    ids=["h264", "vp9", "hevc", "mpeg4", "with sound"],
)
def test_a_clip_equals_its_frames_of_the_whole_video(media: Any, options: dict[str, Any]) -> None:
    data = media.video_file(noise=10, **options)
    index, frames = ClipIndex.parse(clip_index(data), len(data)), all_frames(data)
    how = Clips(6, stride=2)
    for draw in (0.0, 0.37, 0.999):
        expected = frames[how.frame_numbers(60, draw)]
        assert torch.equal(decode(how, data, draw), expected)
        first, last = how.choose(draw, index)
        start, end = index.span(first, last)
        part = EncodedClip(index, first, last, start, data[start:end])
        assert torch.equal(decode(how, part, draw), expected)
        assert end - start < len(data) / 2


def test_frame_numbers() -> None:
    how = Clips(4, stride=3)
    assert how.frame_numbers(100, 0.0).tolist() == [0, 3, 6, 9]
    assert how.frame_numbers(100, 1 - 2**-53).tolist() == [90, 93, 96, 99]
    assert how.frame_numbers(5, 0.7).tolist() == [0, 3, 4, 4]  # the last frame is repeated
    assert Clips(4, stride=3, start="center").frame_numbers(12, 0.9).tolist() == [1, 4, 7, 10]
    assert Clips(4, start="start").frame_numbers(100, 0.9).tolist() == [0, 1, 2, 3]


def test_a_short_video_repeats_its_last_frame(media: Any) -> None:
    data = media.video_file(num_frames=3)
    found = decode(Clips(5), data)
    assert torch.equal(found, all_frames(data)[[0, 1, 2, 2, 2]])


def test_frames_are_resized(media: Any) -> None:
    data = media.video_file()
    for size, shape in ((32, (2, 3, 32, 32)), ((20, 48), (2, 3, 20, 48))):
        found = decode(Clips(2, size=size, start="start"), data)
        assert found.shape == shape
        assert found.dtype == torch.uint8
        levels = found.float().mean(dim=(1, 2, 3)) - torch.tensor([media.brightness(0), media.brightness(1)])
        assert levels.abs().max() < 3


def test_a_rotated_video_is_upright(media: Any) -> None:
    data = media.video_file(noise=60, rotation=90)
    with av.open(io.BytesIO(data)) as container:
        assert next(container.decode(video=0)).rotation in (90, -270)
    found, stored = decode(Clips(2, start="start"), data), all_frames(data)[:2]
    assert found.shape == (2, 3, 96, 64)
    assert torch.equal(found, torch.rot90(stored, 1, (2, 3)))
    assert decode(Clips(2, size=(48, 32)), data).shape == (2, 3, 48, 32)


def test_limits_are_checked_before_frames_are_decoded(media: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = media.video_file()
    assert decode(Clips(2), data, max_pixels=64 * 96).shape == (2, 3, 64, 96)
    with pytest.raises(DecodeError, match="frames of the video are too large"):
        decode(Clips(2), data, max_pixels=64 * 96 - 1)
    index = ClipIndex.parse(clip_index(data) | {"width": 1, "height": 1}, len(data))  # an index that lies
    with pytest.raises(DecodeError, match="a frame of the video is too large"):
        decode(Clips(2), EncodedClip(index, 0, 4, 0, data), 0.0, max_pixels=100)
    monkeypatch.setattr(clips_module, "MAX_BYTES", 10**5)
    with pytest.raises(DecodeError, match="the clip is too large"):
        decode(Clips(16), data)


def test_damaged_videos_raise_decode_errors_alone(media: Any) -> None:
    data, rng = media.video_file(num_frames=24), np.random.default_rng(0)
    (decode_first,) = PartDecoder(Clips(4), "mp4", seed=0).decoders(0, np.array([3]))
    cases = [b"", b"text", media.audio_file("wav"), data[: len(data) // 2]]
    for place in rng.integers(0, len(data), 30).tolist():
        cases.append(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
    for case in cases:
        try:
            assert decode_first(case).shape[:2] == (4, 3)
        except DecodeError:
            continue


@pytest.mark.parametrize(
    "arguments",
    [{"frames": 0}, {"stride": 1.5}, {"size": 0}, {"size": (1, 2, 3)}, {"size": (True, 2)}, {"start": "end"}],
    ids=str,
)
def test_invalid_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Clips(**arguments)


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Clips does not decode a column of this type"):
        PartDecoder(Clips(), "wav", seed=0)
