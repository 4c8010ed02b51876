"""Decodes clips of videos: some frames of each, of which only the groups of pictures are fetched and decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.errors import DecodeError
from concurrent_loader.media.part_decoder import MAX_BYTES, PartOf, Start, check_start
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.media import (
    MEDIA_COLUMNS,
    ClipIndex,
    EncodedClip,
    clip_index,
    find_media_format,
    load_av,
)

__all__ = ["Clips"]

_PADDING_PIXELS = 1 << 16
_CONVERSION = {"format": "rgb24", "interpolation": "BILINEAR", "threads": 1}


@dataclass(frozen=True)
class Clips(PartOf):
    """Decodes a clip of each video to (frames, 3, H, W) uint8, RGB: ``decode={"video": Clips(16, stride=2)}``.

    Of a video with an index (the column ``NAME.clip_index`` beside it, which ``ingest video-folder`` writes), only the
    groups of pictures that the clip needs are fetched. Other videos are fetched whole. A video that is too short
    repeats its last frame.

    Args:
        frames: Number of frames of a clip. Default 16.
        stride: Distance between frames of a clip, in frames of the video. Default 1: neighbors.
        size: Height and width to which frames are resized, bilinearly; an integer for a square. Default: as in the
            video. Without it, videos of different sizes are a list, or what ``ragged=`` says.
        start: Place of the clip: ``"random"`` (default) draws it for each (seed, epoch, sample); ``"center"``,
            ``"start"``.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import Clips
        >>> Clips(4, stride=2, start="start").frame_numbers(num_frames=5, draw=0.0).tolist()
        [0, 2, 4, 4]
    """

    column_types: ClassVar[frozenset[str]] = frozenset({"bytes", "video", *MEDIA_COLUMNS["video"]})

    frames: int = 16
    stride: int = 1
    size: int | tuple[int, int] | None = None
    start: Start = "random"

    def __post_init__(self) -> None:
        check_start(self.start)
        sizes = () if self.size is None else (self.size,) if isinstance(self.size, int) else tuple(self.size)
        for name, value in (("frames", self.frames), ("stride", self.stride), *(("size", each) for each in sizes)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**20:
                raise ConfigurationError(f"{name} must be a positive integer", got=value)
        if len(sizes) > 2:
            raise ConfigurationError("size must be (height, width)", got=self.size)

    @property
    def is_clip(self) -> bool:
        """True."""
        return True

    def frame_numbers(self, num_frames: int, draw: float) -> npt.NDArray[np.int64]:
        """Returns the numbers of a clip's frames in a video of ``num_frames`` frames; ``draw`` is in [0, 1)."""
        span = (self.frames - 1) * self.stride + 1
        share = {"random": draw, "center": 0.5, "start": 0.0}[self.start]
        first = int(share * (max(0, num_frames - span) + 1))
        return np.minimum(first + np.arange(self.frames) * self.stride, num_frames - 1)

    def choose(self, draw: float, index: ClipIndex) -> tuple[int, int]:
        return index.groups(self.frame_numbers(index.num_frames, draw))

    def decode(self, data: Any, draw: float, *, max_pixels: int) -> torch.Tensor:
        """Decodes a clip from the bytes of a video, or of its groups of pictures; see `PartOf.decode`."""
        clip = data if isinstance(data, EncodedClip) else self._clip_of(data, draw)
        index = clip.index
        if index.width * index.height > max_pixels:
            raise DecodeError(
                "the frames of the video are too large; pass max_pixels= to allow them",
                expected=f"at most {max_pixels} pixels", got=f"{index.width} x {index.height}",
            )  # fmt: skip
        upright = (index.height, index.width) if index.rotation % 180 == 0 else (index.width, index.height)
        size = upright if self.size is None else (self.size, self.size) if isinstance(self.size, int) else self.size
        if self.frames * size[0] * size[1] * 3 > MAX_BYTES:
            raise DecodeError("the clip is too large", expected=f"at most {MAX_BYTES} bytes", got=(self.frames, *size))
        numbers = self.frame_numbers(index.num_frames, draw)
        made = np.empty((self.frames, *size, 3), np.uint8)
        places: dict[int, list[int]] = {}
        for place, pts in enumerate(index.pts[index.frame_packets[numbers]].tolist()):
            places.setdefault(pts, []).append(place)
        stored = size if index.rotation % 180 == 0 else size[::-1]
        for frame in _decoded(clip, max_pixels):
            if frame.width * frame.height > max_pixels:
                raise DecodeError("a frame of the video is too large", got=f"{frame.width} x {frame.height}")
            if frame.pts in places:
                image = frame.to_ndarray(height=stored[0], width=stored[1], **_CONVERSION)
                made[places.pop(frame.pts)] = np.rot90(image, index.rotation // 90)
            if not places:
                return torch.from_numpy(made).permute(0, 3, 1, 2)
        raise DecodeError("frames of the video cannot be decoded", expected=self.frames, got=self.frames - len(places))

    def _clip_of(self, data: Any, draw: float) -> EncodedClip:
        view = memoryview(data).cast("B")
        found = find_media_format(view)
        if found is None or found.kind != "video":
            raise DecodeError("the value is not a video of a known format", got=bytes(view[:12]))
        index = ClipIndex.parse(clip_index(view), view.nbytes)
        return EncodedClip(index, *self.choose(draw, index), start=0, data=view)


def _decoded(clip: EncodedClip, max_pixels: int) -> Any:
    """Yields the frames of a clip's groups of pictures. FFmpeg gets no container: only packets, from the index."""
    av = load_av()
    index, view = clip.index, memoryview(clip.data)
    packets = index.packets(clip.first, clip.last)
    # libdav1d decodes AV1; FFmpeg's own decoder of that name needs a GPU.
    context = av.CodecContext.create("libdav1d" if index.codec == "av1" else index.codec, "r")
    context.extradata = index.extradata or None
    context.thread_type, context.thread_count = "NONE", 1  # the loader has threads of its own
    # Also for a stream whose frames are larger than its index says, or grow later. FFmpeg counts padding as pixels.
    context.options = {"max_pixels": str(2 * max_pixels + _PADDING_PIXELS)}
    offsets = (index.offsets[packets] - clip.start).tolist()
    try:
        for offset, size, pts in zip(offsets, index.sizes[packets].tolist(), index.pts[packets].tolist(), strict=True):
            packet = av.Packet(view[offset : offset + size])
            packet.pts = pts
            yield from context.decode(packet)
        yield from context.decode(None)
    except (av.FFmpegError, ValueError) as error:
        raise DecodeError("damaged video data", got=str(error)[:200]) from error
