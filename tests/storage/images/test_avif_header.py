"""Sizes of AVIFs, whatever their boxes claim. Files are assembled here, box by box."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from concurrent_loader.decode.header import ImageHeader, parse_header
from concurrent_loader.decode.registry import make_decoder
from concurrent_loader.errors import DecodeError

ALPHA = b"\0\0\0\0urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0"


def encoded(mode: str, kind: str, size: tuple[int, int] = (37, 21), **options) -> bytes:
    target = io.BytesIO()
    Image.new(mode, size).save(target, kind, **options)
    return target.getvalue()


# -- a writer of AVIFs -------------------------------------------------------------------------------------------------


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def ispe(width: int, height: int) -> bytes:
    return box(b"ispe", bytes(4), struct.pack(">II", width, height))


def av1c(flags: int = 0) -> bytes:
    return box(b"av1C", bytes([0x81, 0, flags, 0]))


def sequence_header(width: int, height: int, *, reduced: bool = True, ops: int = 1, timing: bool = False) -> bytes:
    """An AV1 stream: a temporal delimiter and a sequence header, as far as its size goes."""
    bits = "000" + "1" + ("1" + "00000" if reduced else "0")
    if not reduced:
        bits += "0" if not timing else "1" + "0" * 64 + "1" + "00101" + "1" + "00011" + "0" * 42
        bits += "1" + f"{ops - 1:05b}"  # with display delays
        for _ in range(ops):
            bits += "0" * 12 + "01000" + "0" + ("1" + "0" * 9 if timing else "") + "1" + "0000"
    bits += "1111" + "1111" + f"{width - 1:016b}" + f"{height - 1:016b}"
    bits += "0" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return b"\x12\x00" + b"\x0a" + bytes([len(body)]) + body


def avif(
    items: list[tuple[bytes, bytes, list[int]]],
    properties: list[bytes],
    references: bytes = b"",
    *,
    primary: int = 1,
    brand: bytes = b"avif",
    wide: bool = False,
) -> bytes:
    """Items are (kind, data, properties from 1)."""

    def build(offset: int) -> bytes:
        places, entries = b"", b""
        version = 2 if wide else 1
        number = ">I" if wide else ">H"
        for at, (kind, data, _) in enumerate(items, 1):
            places += struct.pack(number, at) + struct.pack(">HHH", 0, 0, 1) + struct.pack(">II", offset, len(data))
            entries += box(
                b"infe", b"\3\0\0\0" if wide else b"\2\0\0\0", struct.pack(number, at) + b"\0\0" + kind + b"\0"
            )
            offset += len(data)
        numbers = b"".join(
            struct.pack(">H", at) + bytes([len(own)]) + bytes(own) for at, (_, _, own) in enumerate(items, 1)
        )
        return box(b"ftyp", brand, bytes(4), b"mif1", brand) + box(
            b"meta",
            bytes(4),
            box(b"pitm", bytes(4), struct.pack(">H", primary)),
            box(b"iloc", bytes([version, 0, 0, 0, 0x44, 0]), struct.pack(number, len(items)), places),
            box(b"iinf", bytes(4), struct.pack(">H", len(items)), entries),
            references,
            box(
                b"iprp",
                box(b"ipco", *properties),
                box(b"ipma", bytes(4), struct.pack(">I", len(items)), numbers),
            ),
        )

    head = build(0)
    return build(len(head) + 8) + box(b"mdat", *(data for _, data, _ in items))


def still(width: int = 64, height: int = 48, **stream) -> bytes:
    return avif([(b"av01", sequence_header(64, 48, **stream), [1, 2])], [ispe(width, height), av1c()])


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stream",
    [{}, {"reduced": False}, {"reduced": False, "ops": 32}, {"reduced": False, "timing": True, "ops": 3}],
)
def test_the_stream_says_how_large_it_is(stream: dict[str, object]) -> None:
    assert parse_header(still(**stream)) == ImageHeader("avif", 64, 48, 3, coded_pixels=64 * 48)
    lying = parse_header(still(2, 2, **stream))
    assert (lying.width, lying.height, lying.num_pixels) == (2, 2, 64 * 48)


def test_a_stream_that_is_larger_than_its_box_is_refused_before_it_is_decoded() -> None:
    data = avif([(b"av01", sequence_header(65536, 65536), [1, 2])], [ispe(16, 16), av1c()])
    with pytest.raises(DecodeError, match="too large"):
        make_decoder("rgb", "avif")(data)


def test_pillows_files_say_the_same() -> None:
    data = bytearray(encoded("RGB", "AVIF", (300, 200)))
    at = data.index(b"ispe")
    data[at + 8 : at + 16] = struct.pack(">II", 4, 4)
    assert parse_header(data).num_pixels == 300 * 200


@pytest.mark.parametrize("wide", [False, True])
def test_grids_and_their_tiles(wide: bool) -> None:
    tiles = [(b"av01", sequence_header(512, 512), [2, 3])] * 4
    grid = b"\0\0\1\1" + struct.pack(">HH", 1000, 900)
    references = box(b"iref", bytes(4), box(b"dimg", struct.pack(">HH4H", 5, 4, 1, 2, 3, 4)))
    data = avif(
        [*tiles, (b"grid", grid, [1])], [ispe(1000, 900), ispe(512, 512), av1c()], references, primary=5, wide=wide
    )
    assert parse_header(data) == ImageHeader("avif", 1000, 900, 3, coded_pixels=1000 * 900)
    huge = b"\0\1\1\1" + struct.pack(">II", 1 << 20, 1 << 20)
    data = avif([*tiles, (b"grid", huge, [1])], [ispe(10, 9), ispe(512, 512), av1c()], references, primary=5)
    assert parse_header(data).num_pixels == 1 << 40


def test_other_items_count_as_well() -> None:
    references = box(b"iref", bytes(4), box(b"auxl", struct.pack(">HHH", 2, 1, 1)))
    data = avif(
        [(b"av01", sequence_header(64, 48), [1, 2]), (b"av01", sequence_header(4000, 3000), [1, 3, 4])],
        [ispe(64, 48), av1c(), av1c(0x10), box(b"auxC", ALPHA)],
        references,
    )
    assert parse_header(data) == ImageHeader("avif", 64, 48, 4, coded_pixels=4000 * 3000)


@pytest.mark.parametrize(("flags", "num_channels", "bits"), [(0, 3, 8), (0x10, 1, 8), (0x40, 3, 10), (0x60, 3, 12)])
def test_channels_and_bits(flags: int, num_channels: int, bits: int) -> None:
    header = parse_header(avif([(b"av01", sequence_header(8, 8), [1, 2])], [ispe(8, 8), av1c(flags)]))
    assert (header.num_channels, header.bits) == (num_channels, bits)


@pytest.mark.parametrize("number", range(1, 9))
def test_turned_ones_say_so_as_they_are_decoded(number: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = number
    data = encoded("RGB", "AVIF", exif=exif)
    assert parse_header(data).upright == tuple(make_decoder("rgb", "avif")(data).shape[1:])


SEQUENCE = sequence_header(8, 8)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\0\0\0\x10ftypavif" + bytes(4), "no meta box"),
        (avif([(b"av01", SEQUENCE, [1, 2])], [ispe(8, 8), av1c()], primary=7), "no primary image"),
        (avif([(b"hvc1", SEQUENCE, [1, 2])], [ispe(8, 8), av1c()]), "no primary image"),
        (avif([(b"av01", SEQUENCE, [2])], [ispe(8, 8), av1c()]), "no ispe box"),
        (avif([(b"av01", SEQUENCE, [1])], [ispe(8, 8), av1c()]), "no av1C box"),
        (avif([(b"av01", SEQUENCE, [1, 2])], [ispe(0, 8), av1c()]), "no pixels"),
        (avif([(b"av01", b"\x12\0", [1, 2])], [ispe(8, 8), av1c()]), "no sequence header"),
        (avif([(b"av01", b"", [1, 2])], [ispe(8, 8), av1c()]), "no sequence header"),
        (avif([(b"av01", b"\x0a\xff" + b"\xff" * 9, [1, 2])], [ispe(8, 8), av1c()]), "invalid length"),
        (avif([(b"av01", b"\x0a\x7f\0", [1, 2])], [ispe(8, 8), av1c()]), "ends within"),
        (still()[:-4], "ends within"),
        (still().replace(b"\1\0\0\0\x44\0\0\1", b"\1\0\0\0\x00\0\0\1"), "no item lengths"),
        (avif([(b"av01", b"\x12\0" * 5000, [1, 2])], [ispe(8, 8), av1c()]), "too many units"),
        (b"\0\0\0\x10ftypavif" + bytes(4) + b"\0\0\0\1meta" + struct.pack(">Q", 3), "invalid length"),
        (b"\0\0\0\x10ftypavif" + bytes(4) + b"\0\0\0\x08free" * 5000, "too many boxes"),
    ],
)
def test_senseless_files(data: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        parse_header(data)


def test_items_that_share_their_bytes_do_not_take_for_ever() -> None:
    data = avif([(b"av01", SEQUENCE, [1, 2])], [ispe(8, 8), av1c()])
    at = data.index(b"iloc")
    one = data[at + 12 : at + 12 + 16]
    many = b"".join(struct.pack(">H", number) + one[2:] for number in range(1, 900))
    iloc = box(b"iloc", data[at + 4 : at + 10], struct.pack(">H", 899), many)
    infe = b"".join(box(b"infe", b"\2\0\0\0", struct.pack(">HH4s", number, 0, b"av01")) for number in range(1, 900))
    meta = box(b"pitm", bytes(4), b"\0\1") + iloc + box(b"iinf", bytes(4), b"\3\x83", infe)
    meta += data[data.index(b"iprp") - 4 : data.index(b"mdat") - 4]
    hostile = box(b"ftyp", b"avif", bytes(4)) + box(b"meta", bytes(4), meta) + bytes(4096)
    with pytest.raises(DecodeError):
        parse_header(hostile)


# -- whatever the bytes are --------------------------------------------------------------------------------------------

FILES = {
    "avif": encoded("RGB", "AVIF"),
    "rgba avif": encoded("RGBA", "AVIF"),
    "built avif": still(reduced=False, timing=True, ops=2),
    "gif": encoded("L", "GIF"),
    "transparent gif": encoded("P", "GIF", transparency=0),
}


@pytest.mark.parametrize("name", FILES)
def test_every_cut_is_an_error_or_the_header(name: str) -> None:
    data = FILES[name]
    whole, num_errors = parse_header(data), 0
    for end in range(len(data)):
        try:
            assert parse_header(data[:end]) == whole
        except DecodeError:
            num_errors += 1
    assert num_errors > 25


@settings(settings.get_profile("thorough"), derandomize=True)
@given(st.sampled_from(sorted(FILES)), st.data())
def test_changed_bytes_give_a_header_or_a_decode_error(name: str, data: st.DataObject) -> None:
    changed = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 8))):
        changed[data.draw(st.integers(0, min(len(changed), 600) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        changed = changed[: data.draw(st.integers(0, len(changed)))]
    try:
        header = parse_header(changed)
    except DecodeError:
        return
    assert header.num_pixels >= header.width * header.height > 0


@settings(settings.get_profile("thorough"), derandomize=True)
@given(
    st.sampled_from([b"\0\0\0\x10ftypavif\0\0\0\0", b"\0\0\0\x10ftypavif\0\0\0\0\0\0\0\0meta\0\0\0\0", b"GIF89a"]),
    st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from(
                [b"\0\0\0\0iloc", b"\0\0\0\x14ispe", b"\0\0\0\0iprp", b"\0\0\0\0ipco", b"\0\0\0\0iinf", b"\x2c"]
            ),
        ),
        max_size=12,
    ),
)
def test_any_bytes_give_a_header_or_a_decode_error(start: bytes, parts: list[bytes]) -> None:
    try:
        parse_header(start + b"".join(parts))
    except DecodeError:
        return


@pytest.mark.parametrize("backend", ["auto", "torchcodec", "pillow"])
@settings(derandomize=True)
@given(data=st.data())
def test_changed_files_are_a_picture_or_a_decode_error(backend: str, data: st.DataObject) -> None:
    changed = bytearray(FILES[data.draw(st.sampled_from(["avif", "rgba avif", "gif", "transparent gif"]))])
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        picture = make_decoder("rgb", "image", backend=backend, max_pixels=100_000)(bytes(changed))
    except DecodeError:
        return
    assert picture.shape[0] == 3
