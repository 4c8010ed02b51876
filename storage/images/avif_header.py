"""Reads the boxes of an AVIF, and the size of the largest image that its decoder may allocate.

An AVIF states its size in three places: in an ``ispe`` box, in the layout of a grid of tiles, and in the AV1 stream.
Pillow and libavif report the ``ispe`` box, but the decoder allocates memory by the stream. The three may disagree, so
all of them are read, for all items. `tests/storage/images/test_avif_header.py` has a file of 1.5 KB that claims 16 × 16
pixels and makes libavif 1.4.2 allocate 9000 × 9000.

Sources: ISO/IEC 23008-12 (HEIF) for the boxes, AV1 Image File Format 1.1 for their contents, AV1 Bitstream
Specification 5.3 and 5.5 for the sequence header. A stream with more than one frame may contain frames larger than its
sequence header states; libavif refuses frames of more than 2**28 pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images.header import ImageHeader

__all__ = ["parse_avif"]

_MAX_BOXES = 4096
_MAX_ITEMS = 4096
_MAX_UNITS = 4096  # in one AV1 stream; a still image has three or four
_SEQUENCE_HEADER = 1
_ALPHA = (b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha", b"urn:mpeg:hevc:2015:auxid:1")
# (irot, imir) → EXIF orientation. irot counts quarter turns counterclockwise; imir then mirrors: 0 top to
# bottom, 1 left to right.
_ORIENTATIONS = {
    (0, None): 1, (0, 1): 2, (2, None): 3, (0, 0): 4, (1, 0): 5, (3, None): 6, (3, 0): 7, (1, None): 8,
    (2, 0): 2, (2, 1): 4, (1, 1): 7, (3, 1): 5,
}  # fmt: skip


@dataclass
class _Item:
    kind: bytes = b""
    in_idat: bool = False
    extents: list[tuple[int, int]] = field(default_factory=list)
    properties: list[int] = field(default_factory=list)


@dataclass
class _Meta:
    primary: int = 0
    items: dict[int, _Item] = field(default_factory=dict)
    properties: list[tuple[bytes, memoryview]] = field(default_factory=list)
    references: list[tuple[bytes, int, tuple[int, ...]]] = field(default_factory=list)
    idat: memoryview = field(default_factory=lambda: memoryview(b""))

    def item(self, number: int) -> _Item:
        if number not in self.items and len(self.items) >= _MAX_ITEMS:
            raise FormatError("the AVIF has too many items", expected=f"at most {_MAX_ITEMS}")
        return self.items.setdefault(number, _Item())

    def properties_of(self, item: _Item) -> dict[bytes, memoryview]:
        return dict(self.properties[at - 1] for at in item.properties if 0 < at <= len(self.properties))


def parse_avif(view: memoryview) -> ImageHeader:
    """Reads the boxes of an AVIF.

    Raises:
        FormatError: The boxes are invalid, or the primary image is neither AV1 nor a grid.
        struct.error, IndexError: The boxes end too early.
    """
    meta: _Meta | None = None
    brands = b""
    for kind, body in _boxes(view):
        if kind == b"ftyp":
            brands = bytes(body[:4]) + bytes(body[8:256])
        elif kind == b"meta":
            meta = _parse_meta(body[4:])
            break
    animated = b"avis" in [brands[at : at + 4] for at in range(0, len(brands), 4)]
    if meta is None:
        raise FormatError("the AVIF has no meta box")
    primary = meta.items.get(meta.primary)
    if primary is None or primary.kind not in (b"av01", b"grid"):
        raise FormatError("the AVIF has no primary image", got=None if primary is None else primary.kind)
    own = meta.properties_of(primary)
    if b"ispe" not in own:
        raise FormatError("the AVIF has no ispe box, which states its size")
    width, height = _size(own[b"ispe"])
    config = own.get(b"av1C") or _first_tile(meta).get(b"av1C")
    if config is None or len(config) < 4:
        raise FormatError("the AVIF has no av1C box, which states its coding")
    flags = config[2]  # ... high_bitdepth at 6, twelve_bit at 5, monochrome at 4
    bits = 8 if not flags & 0x40 else 12 if flags & 0x20 else 10
    angle = own[b"irot"][0] & 3 if b"irot" in own else 0
    axis = own[b"imir"][0] & 1 if b"imir" in own else None
    num_channels = (1 if flags & 0x10 else 3) + _has_alpha(meta)
    return ImageHeader(
        "avif", width, height, num_channels, bits, animated=animated, orientation=_ORIENTATIONS[angle, axis],
        coded_pixels=_coded_pixels(view, meta),
    )  # fmt: skip


# -- boxes -------------------------------------------------------------------------------------------------------------


def _boxes(view: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    position = 0
    for _ in range(_MAX_BOXES):
        if position + 8 > len(view):
            return
        size, kind = struct.unpack_from(">I4s", view, position)
        start = position + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", view, start)
            start += 8
        end = len(view) if size == 0 else position + size
        if end < start:
            raise FormatError("an AVIF box has an invalid length", got=size)
        if end > len(view) and kind != b"mdat":
            raise IndexError
        yield kind, view[start:end]
        position = end
    raise FormatError("the AVIF has too many boxes", expected=f"at most {_MAX_BOXES}")


def _parse_meta(body: memoryview) -> _Meta:
    meta = _Meta()
    for kind, box in _boxes(body):
        if kind == b"pitm":
            (meta.primary,) = struct.unpack_from(">I" if box[0] else ">H", box, 4)
        elif kind == b"iloc":
            _parse_locations(box, meta)
        elif kind == b"iinf":
            for _, entry in _boxes(box[6 if box[0] == 0 else 8 :]):
                if entry[0] >= 2:
                    number, _, item_kind = struct.unpack_from(">HH4s" if entry[0] == 2 else ">IH4s", entry, 4)
                    meta.item(number).kind = item_kind
        elif kind == b"iref":
            _parse_references(box, meta)
        elif kind == b"iprp":
            _parse_properties(box, meta)
        elif kind == b"idat":
            meta.idat = box
    return meta


def _parse_locations(box: memoryview, meta: _Meta) -> None:
    version, sizes, more = box[0], box[4], box[5]
    if version > 2:
        raise FormatError("the version of the AVIF's iloc box is unknown", got=version)
    offset_size, length_size, base_size = sizes >> 4, sizes & 15, more >> 4
    index_size = more & 15 if version else 0
    if length_size not in (4, 8):
        raise FormatError("the iloc box of the AVIF has no item lengths", got=length_size)
    reader = _Bytes(box, 6)
    for _ in range(reader.take(4 if version == 2 else 2)):
        item = meta.item(reader.take(4 if version == 2 else 2))
        item.in_idat = bool(version) and reader.take(2) & 15 == 1
        reader.take(2)  # data_reference_index: always this file
        base = reader.take(base_size)
        for _ in range(reader.take(2)):
            reader.take(index_size)
            offset = base + reader.take(offset_size)
            item.extents.append((offset, reader.take(length_size)))


def _parse_references(box: memoryview, meta: _Meta) -> None:
    width = 4 if box[0] else 2
    for kind, entry in _boxes(box[4:]):
        reader = _Bytes(entry, 0)
        source = reader.take(width)
        meta.references.append((kind, source, tuple(reader.take(width) for _ in range(reader.take(2)))))


def _parse_properties(box: memoryview, meta: _Meta) -> None:
    for kind, part in _boxes(box):
        if kind == b"ipco":
            meta.properties = [(name, body[4:] if name in (b"ispe", b"auxC") else body) for name, body in _boxes(part)]
        elif kind == b"ipma":
            reader = _Bytes(part, 4)
            wide = part[3] & 1
            for _ in range(reader.take(4)):
                item = meta.item(reader.take(4 if part[0] else 2))
                for _ in range(reader.take(1)):
                    item.properties.append(reader.take(2) & 0x7FFF if wide else reader.take(1) & 0x7F)


class _Bytes:
    """Reads big-endian numbers in sequence."""

    def __init__(self, view: memoryview, position: int) -> None:
        self._view = view
        self._position = position

    def take(self, num_bytes: int) -> int:
        end = self._position + num_bytes
        if end > len(self._view):
            raise IndexError
        number = int.from_bytes(self._view[self._position : end], "big")
        self._position = end
        return number


# -- sizes -------------------------------------------------------------------------------------------------------------


def _size(box: memoryview) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", box)
    return width, height


def _first_tile(meta: _Meta) -> dict[bytes, memoryview]:
    tiles = [
        to for kind, source, targets in meta.references if kind == b"dimg" and source == meta.primary for to in targets
    ]
    return meta.properties_of(meta.items[tiles[0]]) if tiles and tiles[0] in meta.items else {}


def _has_alpha(meta: _Meta) -> bool:
    for kind, source, targets in meta.references:
        if kind == b"auxl" and meta.primary in targets and source in meta.items:
            auxiliary = meta.properties_of(meta.items[source]).get(b"auxC", memoryview(b""))
            if bytes(auxiliary[:64]).split(b"\0")[0] in _ALPHA:
                return True
    return False


def _coded_pixels(view: memoryview, meta: _Meta) -> int:
    """Returns the largest number of pixels that any box or stream announces."""
    largest = max(width * height for width, height in (_size(box) for name, box in meta.properties if name == b"ispe"))
    budget = len(view)  # items may share bytes; the budget keeps the time linear in the file's length
    for item in meta.items.values():
        if item.kind not in (b"av01", b"grid"):
            continue
        budget -= sum(length for _, length in item.extents)
        if budget < 0:
            raise FormatError("the AVIF's items are longer than the file")
        data = _data(view, meta, item)
        largest = max(largest, _grid_pixels(data) if item.kind == b"grid" else _stream_pixels(data))
    return largest


def _data(view: memoryview, meta: _Meta, item: _Item) -> bytes:
    source = meta.idat if item.in_idat else view
    if any(offset + length > len(source) for offset, length in item.extents):
        raise IndexError
    return b"".join(source[offset : offset + length] for offset, length in item.extents)


def _grid_pixels(data: bytes) -> int:
    width, height = struct.unpack_from(">II" if data[1] & 1 else ">HH", data, 4)
    return int(width * height)


def _stream_pixels(data: bytes) -> int:
    """Returns the pixels of the largest sequence header in an AV1 stream, which must contain at least one."""
    largest, position = 0, 0
    for _ in range(_MAX_UNITS):
        if position >= len(data):
            break
        head = data[position]
        position += 2 if head & 0x04 else 1
        size = len(data) - position
        if head & 0x02:
            size, position = _leb128(data, position)
        if position + size > len(data):
            raise IndexError
        if head >> 3 & 15 == _SEQUENCE_HEADER:
            largest = max(largest, _sequence_pixels(data[position : position + min(size, 4096)]))
        position += size
    if position < len(data):
        raise FormatError("an AV1 stream of the AVIF has too many units", expected=f"at most {_MAX_UNITS}")
    if not largest:
        raise FormatError("an AV1 stream of the AVIF has no sequence header")
    return largest


def _leb128(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for at in range(8):
        byte = data[position + at]
        number |= (byte & 0x7F) << (7 * at)
        if not byte & 0x80:
            return number, position + at + 1
    raise FormatError("an AV1 stream of the AVIF has an invalid length")


def _sequence_pixels(data: bytes) -> int:
    bits = _Bits(data)
    bits.take(4)  # profile, still picture
    if bits.take(1):  # reduced_still_picture_header
        bits.take(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    return (bits.take(width_bits) + 1) * (bits.take(height_bits) + 1)


def _skip_operating_points(bits: _Bits) -> None:
    delay_bits = 0
    if bits.take(1):  # timing
        bits.take(64)
        if bits.take(1):
            zeros = 0
            while zeros < 32 and not bits.take(1):
                zeros += 1
            bits.take(zeros if zeros < 32 else 0)
        if bits.take(1):  # decoder model
            delay_bits = bits.take(5) + 1
            bits.take(42)
    display_delay = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:
            bits.take(1)
        if delay_bits and bits.take(1):
            bits.take(2 * delay_bits + 1)
        if display_delay and bits.take(1):
            bits.take(4)


class _Bits:
    """Reads numbers of any number of bits in sequence, most significant bit first."""

    def __init__(self, data: bytes) -> None:
        self._number = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, num_bits: int) -> int:
        if num_bits > self._left:
            raise IndexError
        self._left -= num_bits
        return self._number >> self._left & ((1 << num_bits) - 1)
