"""Reads an AVIF's boxes: how large a picture its decoder would make, before anything is allocated for its pixels.

An AVIF names its size three times: in a box for people (``ispe``), in the layout of a grid of tiles, and in the AV1
stream itself, which is what a decoder allocates by. All are read, of all items, as a file may say otherwise in each.

Sources: ISO/IEC 23008-12 (HEIF) for the boxes, AV1 Image File Format 1.1 for what they hold, AV1 Bitstream
Specification 5.3 and 5.5 for the sequence header. A stream that is no still picture may hold frames larger than its
sequence header says; libavif refuses those beyond 2**28 pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from storage.errors import FormatError

__all__ = ["AvifFacts", "parse_avif"]

_MAX_BOXES = 4096
_MAX_ITEMS = 4096
_MAX_UNITS = 4096  # of a stream; a still picture has three or four
_SEQUENCE_HEADER = 1
_ALPHA = (b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha", b"urn:mpeg:hevc:2015:auxid:1")
# (irot, imir) → EXIF: quarter turns against the clock, then a mirror: 0 upside down, 1 left to right.
_ORIENTATIONS = {
    (0, None): 1, (0, 1): 2, (2, None): 3, (0, 0): 4, (1, 0): 5, (3, None): 6, (3, 0): 7, (1, None): 8,
    (2, 0): 2, (2, 1): 4, (1, 1): 7, (3, 1): 5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AvifFacts:
    """What the boxes say.

    Attributes:
        width: Of the primary picture, before it is turned.
        height: The same.
        coded_pixels: Of the largest thing in the file that a decoder may make.
        num_channels: 1 gray, 3 colour; one more with alpha.
        bits: Per channel.
        orientation: As by EXIF.
        animated: It is a sequence of pictures.
    """

    width: int
    height: int
    coded_pixels: int
    num_channels: int
    bits: int
    orientation: int
    animated: bool


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


def parse_avif(view: memoryview) -> AvifFacts:
    """Reads the boxes of an AVIF.

    Raises:
        FormatError: They make no sense, or the picture is none that libraries know.
        struct.error, IndexError: They end too early.
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
        raise FormatError("the AVIF has no primary picture", got=None if primary is None else primary.kind)
    own = meta.properties_of(primary)
    if b"ispe" not in own:
        raise FormatError("the AVIF does not say how large it is")
    width, height = _size(own[b"ispe"])
    config = own.get(b"av1C") or _first_tile(meta).get(b"av1C")
    if config is None or len(config) < 4:
        raise FormatError("the AVIF does not say how it is coded")
    flags = config[2]  # ... high_bitdepth at 6, twelve_bit at 5, monochrome at 4
    bits = 8 if not flags & 0x40 else 12 if flags & 0x20 else 10
    angle = own[b"irot"][0] & 3 if b"irot" in own else 0
    axis = own[b"imir"][0] & 1 if b"imir" in own else None
    return AvifFacts(
        width=width,
        height=height,
        coded_pixels=_coded_pixels(view, meta),
        num_channels=(1 if flags & 0x10 else 3) + _has_alpha(meta),
        bits=bits,
        orientation=_ORIENTATIONS[angle, axis],
        animated=animated,
    )


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
            raise FormatError("an AVIF box has an impossible length", got=size)
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
        raise FormatError("the AVIF's locations are of an unknown version", got=version)
    offset_size, length_size, base_size = sizes >> 4, sizes & 15, more >> 4
    index_size = more & 15 if version else 0
    if length_size not in (4, 8):
        raise FormatError("the AVIF's items have no lengths", got=length_size)
    reader = _Bytes(box, 6)
    for _ in range(reader.take(4 if version == 2 else 2)):
        item = meta.item(reader.take(4 if version == 2 else 2))
        item.in_idat = bool(version) and reader.take(2) & 15 == 1
        reader.take(2)  # in which file: this one
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
    """Reads numbers one after the other."""

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
    """The most pixels that any one box or stream announces."""
    most = max(width * height for width, height in (_size(box) for name, box in meta.properties if name == b"ispe"))
    budget = len(view)  # items may share their bytes, but not so that reading them takes for ever
    for item in meta.items.values():
        if item.kind not in (b"av01", b"grid"):
            continue
        budget -= sum(length for _, length in item.extents)
        if budget < 0:
            raise FormatError("the AVIF's items are longer than the file")
        data = _data(view, meta, item)
        most = max(most, _grid_pixels(data) if item.kind == b"grid" else _stream_pixels(data))
    return most


def _data(view: memoryview, meta: _Meta, item: _Item) -> bytes:
    source = meta.idat if item.in_idat else view
    if any(offset + length > len(source) for offset, length in item.extents):
        raise IndexError
    return b"".join(source[offset : offset + length] for offset, length in item.extents)


def _grid_pixels(data: bytes) -> int:
    width, height = struct.unpack_from(">II" if data[1] & 1 else ">HH", data, 4)
    return int(width * height)


def _stream_pixels(data: bytes) -> int:
    """Finds all sequence headers of an AV1 stream; there must be one."""
    most, position = 0, 0
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
            most = max(most, _sequence_pixels(data[position : position + min(size, 4096)]))
        position += size
    if position < len(data):
        raise FormatError("the AVIF's stream has too many units", expected=f"at most {_MAX_UNITS}")
    if not most:
        raise FormatError("the AVIF holds an AV1 stream without a sequence header")
    return most


def _leb128(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for at in range(8):
        byte = data[position + at]
        number |= (byte & 0x7F) << (7 * at)
        if not byte & 0x80:
            return number, position + at + 1
    raise FormatError("the AVIF has a length without end")


def _sequence_pixels(data: bytes) -> int:
    bits = _Bits(data)
    bits.take(4)  # profile, still picture
    if bits.take(1):  # its header is the reduced one
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
    """Reads numbers of some bits, the highest first."""

    def __init__(self, data: bytes) -> None:
        self._number = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, num_bits: int) -> int:
        if num_bits > self._left:
            raise IndexError
        self._left -= num_bits
        return self._number >> self._left & ((1 << num_bits) - 1)
