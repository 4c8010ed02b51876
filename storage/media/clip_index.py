"""The index of a video: which bytes each group of pictures has, and their digest.

A *group of pictures* starts with a frame that is decoded without others. A clip needs the groups of its frames, so
readers fetch and verify those alone. The index also has what a decoder must know (codec and its parameters, range and
time of each packet), so the container's own tables are not read again. It is stored in a column beside the video.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.storage.errors import DigestMismatch, FormatError
from concurrent_loader.storage.images.header import Buffer
from concurrent_loader.storage.media.pyav import load_av, open_media

__all__ = ["CLIP_INDEX_SUFFIX", "ClipIndex", "EncodedClip", "clip_index", "is_hidden_column"]

CLIP_INDEX_SUFFIX = ".clip_index"
"""Ending of the name of the column (type ``json``) that has the index of a video: ``video.clip_index``."""

CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4")
_MAX_EXTRADATA_BYTES = 1 << 20
_SEARCH_BYTES = 64  # between the position that a reader reports and the packet's own bytes, in a WebM file

_Int64s = npt.NDArray[np.int64]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Signed = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    codec: str
    extradata: str
    width: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    height: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    rotation: int
    time_base: tuple[Annotated[int, msgspec.Meta(ge=1, le=2**31)], Annotated[int, msgspec.Meta(ge=1, le=2**31)]]
    gaps: list[_Signed]
    sizes: list[_Count]
    pts: list[_Signed]
    hidden: list[_Count]
    keys: list[_Count]
    digests: list[str]


def is_hidden_column(name: str) -> bool:
    """Returns whether a column serves the library, and is no part of a sample unless it is asked for by name."""
    return name.endswith(CLIP_INDEX_SUFFIX)


@dataclass(frozen=True, eq=False, slots=True)
class ClipIndex:
    """The index of a video of n packets in g groups of pictures.

    Attributes:
        codec: FFmpeg's name of the codec.
        extradata: Parameters of the codec from the container.
        width: Width of a frame in pixels, before `rotation`.
        height: Height of a frame in pixels, before `rotation`.
        rotation: Degrees by which frames are rotated counterclockwise for display: 0, 90, 180 or 270.
        time_base: Seconds per unit of `pts`, as numerator and denominator.
        offsets: (n,) int64, first byte of each packet in the file.
        sizes: (n,) int64, bytes of each packet.
        pts: (n,) int64, time at which the frame of each packet is shown.
        frame_packets: (num_frames,) int64, packet of each frame in the order of display.
        keys: (g,) int64, first packet of each group.
        digests: (g,) uint64, XXH3 of each group's bytes, from the first byte of a packet to the last one.

    Example:
        >>> from concurrent_loader.storage.media import ClipIndex
        >>> body = {"version": 1, "codec": "h264", "extradata": "", "width": 64, "height": 48, "rotation": 0,
        ...         "time_base": [1, 30], "gaps": [8, 0, 0], "sizes": [9, 2, 9], "pts": [0, 1, 1], "hidden": [],
        ...         "keys": [0, 2], "digests": ["00", "00"]}
        >>> index = ClipIndex.parse(body, num_bytes=28)
        >>> index.num_frames, index.groups([1]), index.span(0, 0)
        (3, (0, 0), (8, 19))
    """

    codec: str
    extradata: bytes
    width: int
    height: int
    rotation: int
    time_base: tuple[int, int]
    offsets: _Int64s
    sizes: _Int64s
    pts: _Int64s
    frame_packets: _Int64s
    keys: _Int64s
    digests: npt.NDArray[np.uint64]

    @classmethod
    def parse(cls, value: object, num_bytes: int) -> ClipIndex:
        """Checks an index, as stored in its column, against the length of its video.

        Raises:
            FormatError: The index is invalid, or does not belong to a file of this length.
        """
        try:
            body = msgspec.convert(value, _Body)
            extradata = base64.b64decode(body.extradata, validate=True)
            digests = np.array([int(digest, 16) for digest in body.digests], np.uint64)
        except (msgspec.ValidationError, ValueError, OverflowError) as error:
            raise FormatError("the index of a video is damaged", got=str(error)[:200]) from error
        sizes, gaps = np.array(body.sizes, np.int64), np.array(body.gaps, np.int64)
        keys, hidden = np.array(body.keys, np.int64), np.array(body.hidden, np.int64)
        num_packets = len(sizes)
        if not num_packets or {len(gaps), len(body.pts)} != {num_packets} or len(digests) != len(keys):
            raise FormatError("the index of a video is damaged", got="lists of different lengths")
        offsets = np.cumsum(gaps + sizes) - sizes
        in_file = sizes.min() > 0 and offsets.min() >= 0 and (offsets <= num_bytes - sizes).all()
        in_order = len(keys) > 0 and keys[0] == 0 and (np.diff(keys) > 0).all() and keys[-1] < num_packets
        is_known = body.version == 1 and body.codec in CODECS and body.rotation in (0, 90, 180, 270)
        if not in_file or not in_order or not is_known or len(extradata) > _MAX_EXTRADATA_BYTES:
            raise FormatError("the index of a video does not fit the video", got=f"{num_bytes} bytes")
        pts = np.cumsum(np.array(body.pts, np.int64))
        shown = np.setdiff1d(np.arange(num_packets), hidden)
        frames = shown[np.argsort(pts[shown], kind="stable")]
        if not len(frames) or len(np.unique(pts[shown])) != len(shown):
            raise FormatError("the index of a video has frames without a time of their own", got=len(frames))
        return cls(
            body.codec, extradata, body.width, body.height, body.rotation, body.time_base, offsets, sizes, pts, frames,
            keys, digests,
        )  # fmt: skip

    @property
    def num_frames(self) -> int:
        """Number of frames that are shown."""
        return len(self.frame_packets)

    def groups(self, frames: npt.ArrayLike) -> tuple[int, int]:
        """Returns the first and the last group of pictures that decoding some frames takes.

        Args:
            frames: Numbers of frames in the order of display, from 0.
        """
        packets = self.frame_packets[np.asarray(frames, np.int64)]
        groups = np.searchsorted(self.keys, packets, side="right") - 1
        # A frame that is shown before the first one of its group may refer to the group before (an open group).
        leads = self.pts[packets] < self.pts[self.keys[groups]]
        return max(0, int((groups - leads).min())), int(groups.max())

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Returns the bytes [start, end) of the groups from ``first`` to ``last``."""
        packets = self.packets(first, last)
        return int(self.offsets[packets].min()), int((self.offsets + self.sizes)[packets].max())

    def packets(self, first: int, last: int) -> slice:
        """Returns the packets of the groups from ``first`` to ``last``."""
        return slice(int(self.keys[first]), int(self.keys[last + 1]) if last + 1 < len(self.keys) else len(self.sizes))

    def check(self, first: int, last: int, data: Buffer) -> None:
        """Verifies the bytes of the groups from ``first`` to ``last``, which are those of `span`.

        Raises:
            DigestMismatch: The bytes of a group differ from what was written.
        """
        base = self.span(first, last)[0]
        view = memoryview(data)
        for group in range(first, last + 1):
            start, end = self.span(group, group)
            got, expected = xxhash.xxh3_64_intdigest(view[start - base : end - base]), int(self.digests[group])
            if got != expected:
                raise DigestMismatch(
                    f"group of pictures {group} of a video differs from what was written",
                    expected=f"{expected:016x}", got=f"{got:016x}",
                )  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class EncodedClip:
    """Verified bytes of the groups of pictures from ``first`` to ``last`` of a video.

    Attributes:
        index: Index of the video.
        first: Number of the first group.
        last: Number of the last group.
        start: Place of ``data`` in the file, in bytes.
        data: Bytes of the file.
    """

    index: ClipIndex
    first: int
    last: int
    start: int
    data: Buffer


def clip_index(data: Buffer) -> dict[str, Any]:
    """Makes the index of a video, the value of the column ``NAME.clip_index`` beside the column ``NAME``.

    Args:
        data: Bytes of an MP4 or WebM file. Its first frame is decoded, its other packets are only listed.

    Returns:
        JSON for a column of type ``json``; docs/reference/format.md describes it.

    Raises:
        FormatError: The file is damaged, has no video, or has a codec other than H.264, HEVC, VP8, VP9, AV1 and MPEG-4.
        ConfigurationError: PyAV is not installed.
    """
    view = memoryview(data).cast("B")
    av = load_av()
    with open_media(view) as container:
        if not container.streams.video:
            raise FormatError("the file has no video")
        stream = container.streams.video[0]
        codec = stream.codec_context
        name = None if codec is None else av.Codec(codec.name, "r").canonical_name
        if name not in CODECS:
            raise FormatError("the codec of the video is not supported", expected="|".join(CODECS), got=name)
        packets = [packet for packet in container.demux(stream) if packet.size]
        first = next((number for number, packet in enumerate(packets) if packet.is_keyframe), None)
        if first is None:
            raise FormatError("the video has no frame that is decoded without others")
        packets = packets[first:]
        if any(packet.pts is None for packet in packets):
            raise FormatError("the video has frames without a time")
        container.seek(0, stream=stream)
        frame = next(container.decode(stream), None)
        if frame is None:
            raise FormatError("the first frame of the video cannot be decoded")
        body = _body(name, packets, view) | {
            "extradata": base64.b64encode(codec.extradata or b"").decode(),
            "width": frame.width,
            "height": frame.height,
            "rotation": round(frame.rotation / 90) * 90 % 360,
            "time_base": [stream.time_base.numerator, stream.time_base.denominator],
        }
    index = ClipIndex.parse({**body, "digests": ["0"] * len(body["keys"])}, view.nbytes)
    spans = [index.span(group, group) for group in range(len(index.keys))]
    return body | {"digests": [f"{xxhash.xxh3_64_intdigest(view[start:end]):016x}" for start, end in spans]}


def _body(name: str, packets: list[Any], view: memoryview) -> dict[str, Any]:
    sizes = [packet.size for packet in packets]
    offsets = [_find(packet, view) for packet in packets]
    ends = [0, *(offset + size for offset, size in zip(offsets, sizes, strict=True))]
    pts = [packet.pts for packet in packets]
    return {
        "version": 1,
        "codec": name,
        "gaps": [offset - end for offset, end in zip(offsets, ends, strict=False)],
        "sizes": sizes,
        "pts": [pts[0], *(after - before for before, after in pairwise(pts))],
        "hidden": [number for number, packet in enumerate(packets) if not _is_shown(name, packet)],
        "keys": [number for number, packet in enumerate(packets) if packet.is_keyframe],
    }


def _find(packet: Any, view: memoryview) -> int:
    """Returns the place of a packet's bytes in the file."""
    position = -1 if packet.pos is None else packet.pos
    if position >= 0:
        data = bytes(packet)
        found = bytes(view[position : position + len(data) + _SEARCH_BYTES]).find(data)
        if found >= 0:
            return int(position + found)
    raise FormatError("the packets of the video are not stored as they are decoded", got=packet.pos)


def _is_shown(name: str, packet: Any) -> bool:
    # VP8 has packets of their own for frames that are only referred to; other codecs put these beside a shown one.
    return not packet.is_discard and (name != "vp8" or bool(bytes(packet)[0] & 0x10))
