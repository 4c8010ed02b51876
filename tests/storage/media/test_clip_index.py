from __future__ import annotations

import io
import itertools
import json
from typing import Any

import av
import numpy as np
import pytest

from concurrent_loader.storage import DigestMismatch, FormatError
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.media import ClipIndex, clip_index, pyav


@pytest.mark.parametrize(
    "options",
    [{}, {"kind": "webm"}, {"codec": "libx265"}, {"codec": "mpeg4"}, {"sound": True}],
    ids=["h264", "vp9", "hevc", "mpeg4", "with sound"],
)
def test_the_index_has_every_packet_and_frame_of_a_video(media: Any, options: dict[str, Any]) -> None:
    data = media.video_file(**options)
    value = json.loads(json.dumps(clip_index(data)))  # as a json column returns it
    index = ClipIndex.parse(value, len(data))
    with av.open(io.BytesIO(data)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    with av.open(io.BytesIO(data)) as container:
        times = [frame.pts for frame in container.decode(video=0)]
    found = [data[start : start + size] for start, size in zip(index.offsets, index.sizes, strict=True)]
    assert found == [bytes(packet) for packet in packets]
    assert index.pts[index.frame_packets].tolist() == times
    assert index.num_frames == 60
    assert (index.height, index.width) == (64, 96)
    spans = [index.span(group, group) for group in range(len(index.keys))]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_a_clip_takes_the_groups_of_its_frames(media: Any) -> None:
    index = ClipIndex.parse(clip_index(data := media.video_file()), len(data))
    assert index.keys.tolist() == [0, 12, 24, 36, 48]
    assert index.groups([0, 11]) == (0, 0)
    assert index.groups([11, 12]) == (0, 1)
    assert index.groups([59]) == (4, 4)
    assert index.packets(1, 2) == slice(12, 36)
    assert index.packets(4, 4) == slice(48, 60)


def test_a_frame_before_the_first_one_of_an_open_group_takes_the_group_before() -> None:
    body = _body() | {"pts": [0, 3, -1, -1], "keys": [0, 2], "digests": ["0", "0"]}  # shown at 0, 3, 2, 1
    index = ClipIndex.parse(body, 100)
    assert index.frame_packets.tolist() == [0, 3, 2, 1]
    assert index.groups([1]) == (0, 1)  # packet 3, which is shown before its group's first frame
    assert index.groups([2]) == (1, 1)


def test_a_flipped_byte_in_a_group_is_found(media: Any) -> None:
    data = media.video_file()
    index = ClipIndex.parse(clip_index(data), len(data))
    start, end = index.span(1, 2)
    index.check(1, 2, data[start:end])
    damaged = bytearray(data[start:end])
    damaged[-1] ^= 1
    with pytest.raises(DigestMismatch, match="group of pictures 2"):
        index.check(1, 2, damaged)


def _body() -> dict[str, Any]:
    return {
        "version": 1, "codec": "h264", "extradata": "", "width": 8, "height": 8, "rotation": 0, "time_base": [1, 30],
        "gaps": [10, 0, 5, 0], "sizes": [20, 5, 20, 5], "pts": [0, 1, 1, 1], "hidden": [], "keys": [0, 2],
        "digests": ["0f", "1e"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"codec": "prores"},
        {"rotation": 45},
        {"width": 0},
        {"height": 2**40},
        {"time_base": [1, 0]},
        {"extradata": "?"},
        {"extradata": "A" * (1 << 21)},
        {"sizes": [20, 5, 20]},
        {"sizes": [20, 5, 20, 0]},
        {"sizes": [20, 5, 20, 60]},
        {"sizes": [20, 5, 20, 2**60]},
        {"sizes": [], "gaps": [], "pts": [], "keys": [], "digests": []},
        {"gaps": [-11, 0, 5, 0]},
        {"gaps": [2**53, 2**53, 2**53, 0]},
        {"pts": [0, 0, 1, 1]},
        {"pts": [0, 1.5, 1, 1]},
        {"hidden": [0, 1, 2, 3]},
        {"keys": [1, 2]},
        {"keys": [0, 0]},
        {"keys": [0, 4]},
        {"keys": [0]},
        {"digests": ["0f", "not hex"]},
        {"digests": ["0f", "f" * 17]},
        {"more": 1},
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    ClipIndex.parse(_body(), 65)
    with pytest.raises(FormatError):
        ClipIndex.parse(_body() | change, 65)


@pytest.mark.parametrize("value", [None, [], "text", {}, 3])
def test_other_json_is_no_index(value: object) -> None:
    with pytest.raises(FormatError):
        ClipIndex.parse(value, 65)


def test_files_without_a_usable_video_are_refused(media: Any) -> None:
    whole = media.video_file()
    with pytest.raises(FormatError, match="no video"):
        clip_index(media.audio_file("flac"))
    with pytest.raises(FormatError, match="unknown"):
        clip_index(b"#EXTM3U\nfile:///etc/passwd")
    with pytest.raises(FormatError, match="damaged mp4 data"):
        clip_index(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="codec of the video is not supported"):
        clip_index(media.video_file(codec="mpeg2video", num_frames=2))


def test_damage_anywhere_is_an_error_or_another_index(media: Any) -> None:
    data, rng = media.video_file(num_frames=24), np.random.default_rng(0)
    for place in rng.integers(0, len(data), 60).tolist():
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        try:
            ClipIndex.parse(clip_index(damaged), len(damaged))
        except FormatError:
            continue


def test_without_pyav_the_error_says_how_to_install_it(media: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    data = media.video_file()
    monkeypatch.setattr(pyav, "import_module", fail)
    with pytest.raises(ConfigurationError, match="pip install av"):
        clip_index(data)
