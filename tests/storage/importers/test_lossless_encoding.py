"""Foreign files as lossless pictures: pixel by pixel what Pillow reads, or the reason why not; and a folder of them."""

from __future__ import annotations

import asyncio
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from concurrent_loader.storage.errors import ConfigurationError, CorruptData
from concurrent_loader.storage.importers import ImageFolder
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.importers.lossless_encoding import to_lossless
from concurrent_loader.storage.lossless import decode
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.stores import LocalStore

DICE = np.random.default_rng(0)


def photo(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}[mode]
    y, x = np.mgrid[: size[1], : size[0]]
    pixels = np.stack([x * 3 + y * each for each in range(channels)], axis=2).astype(np.uint8)
    return Image.fromarray(pixels[:, :, 0] if mode == "L" else pixels, mode=None)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def as_planes(image: Image.Image) -> np.ndarray:
    return np.atleast_3d(np.asarray(image)).transpose(2, 0, 1)


def pixels_of(file: bytes, **options: Any) -> np.ndarray:
    made = to_lossless(file, **options)
    assert isinstance(made, bytes), made
    return decode(made)


@pytest.mark.parametrize("encoding", ["lossless", "lossless-pack"])
@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        *(("PNG", mode, {}) for mode in ("L", "LA", "RGB", "RGBA")),
        ("WEBP", "RGB", {"lossless": True}),
        ("WEBP", "RGBA", {"lossless": True, "exact": True}),
        *(("TIFF", mode, {}) for mode in ("L", "RGB", "RGBA")),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("TIFF", "RGB", {"compression": "tiff_adobe_deflate"}),
        *(("BMP", mode, {}) for mode in ("L", "RGB")),
    ],
)
def test_pixels_are_kept(kind, mode, options, encoding):
    image = photo(mode)
    assert np.array_equal(pixels_of(saved(image, kind, **options), encoding=encoding), as_planes(image))


def test_sixteen_bits_of_gray_are_kept():
    deep = DICE.integers(0, 65536, (30, 40)).astype(np.uint16)
    for kind in ("PNG", "TIFF"):
        assert np.array_equal(pixels_of(saved(Image.fromarray(deep), kind))[0], deep)
    big_endian = Image.frombytes("I;16B", (40, 30), deep.astype(">u2").tobytes())
    assert np.array_equal(pixels_of(saved(big_endian, "TIFF"))[0], deep)


def test_palettes_and_bits_are_spread_out():
    palette = photo().quantize(16)
    assert np.array_equal(pixels_of(saved(palette, "PNG")), as_planes(palette.convert("RGB")))
    assert np.array_equal(pixels_of(saved(palette, "BMP")), as_planes(palette.convert("RGB")))
    with_key = saved(palette, "PNG", transparency=3)
    wanted = Image.open(io.BytesIO(with_key)).convert("RGBA")
    assert np.array_equal(pixels_of(with_key), as_planes(wanted))
    bits = photo("L").convert("1")
    assert np.array_equal(pixels_of(saved(bits, "PNG")), as_planes(bits.convert("L")))


@pytest.mark.parametrize(("mode", "key"), [("RGB", (3, 3, 3)), ("L", 3)])
def test_a_transparent_colour_becomes_alpha(mode, key):
    found = pixels_of(saved(photo(mode), "PNG", transparency=key))
    assert len(found) == 4
    assert 0 < (found[3] == 0).sum() < found[3].size


def test_pictures_are_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        file = saved(photo(), kind, exif=exif, **options)
        wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
        assert wanted.size == (30, 40)
        assert np.array_equal(pixels_of(file), as_planes(wanted))


def png(width: int, bits: int, colour: int, *rows: bytes, key: bytes = b"") -> bytes:
    """A PNG of packed rows, with one transparent colour if there is a ``key``."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), bits, colour, 0, 0, 0))]
    parts += [chunk(b"tRNS", key)] if key else []
    parts += [chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def sixteen_bit_colour() -> bytes:
    return png(2, 16, 2, *[bytes(range(12))] * 2)


@pytest.mark.parametrize(
    ("bits", "row", "key", "gray"),
    [
        (1, b"\x50", 1, [0, 255, 0, 255]),
        (2, b"\x1b", 2, [0, 85, 170, 255]),
        (2, b"\x1b", 0, [0, 85, 170, 255]),
        (4, b"\x0f\x51", 15, [0, 255, 85, 17]),
        (4, b"\x0f\x51", 7, [0, 255, 85, 17]),
        (8, b"\x00\x0f\xff\x01", 15, [0, 15, 255, 1]),
    ],
)
def test_a_transparent_gray_of_few_bits_becomes_alpha(bits, row, key, gray):
    found = pixels_of(png(4, bits, 0, row, key=struct.pack(">H", key)))
    assert found[:3].tolist() == [[gray]] * 3
    transparent = key * 255 // (2**bits - 1)
    assert found[3].tolist() == [[0 if each == transparent else 255 for each in gray]]


def test_a_transparent_gray_of_16_bits_is_refused():
    made = to_lossless(png(2, 16, 0, b"\x01\x02\x03\x04", key=b"\x01\x02"))
    assert isinstance(made, str)
    assert "transparent" in made


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "empty"),
        (b"nothing", "does not decode"),
        (saved(photo(), "JPEG"), "a JPEG"),
        (saved(photo(), "PNG")[:-60], "does not decode"),
        (saved(photo(), "WEBP", quality=90), "lossy WebP"),
        (saved(photo(), "TIFF", compression="jpeg"), "lossy TIFF"),
        (saved(photo(), "PNG", save_all=True, append_images=[photo("RGB", (40, 30)).rotate(90)]), "more than one"),
        (saved(photo(), "TIFF", save_all=True, append_images=[photo()]), "more than one"),
        (sixteen_bit_colour(), "16 bits"),
        (saved(photo().convert("CMYK"), "TIFF"), "mode CMYK"),
        (saved(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"), "mode F"),
    ],
)
def test_why_not(file, words):
    made = to_lossless(file)
    assert isinstance(made, str)
    assert words in made


def tiff(samples: np.ndarray, **tags: int | tuple[int, ...]) -> bytes:
    """A TIFF of (H, W, C) samples as they are, which no writer of Pillow makes. Tags by name, of SHORTs."""
    height, width, channels = samples.shape
    data = samples.astype(samples.dtype.newbyteorder("<")).tobytes()
    numbers = {"photometric": 262, "extra": 338, "format": 339}
    entries = {256: (width,), 257: (height,), 258: (samples.itemsize * 8,) * channels, 259: (1,), 262: (2,), 273: (0,),
               277: (channels,), 278: (height,), 279: (len(data),)}  # fmt: skip
    entries |= {numbers[name]: value if isinstance(value, tuple) else (value,) for name, value in tags.items()}
    outside_at = 8 + 2 + 12 * len(entries) + 4
    outside = {tag: struct.pack(f"<{len(of)}H", *of) for tag, of in entries.items() if len(of) > 2}
    entries[273] = (outside_at + sum(map(len, outside.values())),)
    directory, at = struct.pack("<H", len(entries)), outside_at
    for tag, of in sorted(entries.items()):
        inside = struct.pack("<I", at) if tag in outside else struct.pack(f"<{len(of)}H", *of).ljust(4, b"\0")
        at += len(outside.get(tag, b""))
        directory += struct.pack("<HHI", tag, 3, len(of)) + inside
    return b"II*\0\x08\0\0\0" + directory + bytes(4) + b"".join(outside[tag] for tag in sorted(outside)) + data


def noise(channels: int, dtype: str = "u1") -> np.ndarray:
    return DICE.integers(0, np.iinfo(dtype).max, (3, 4, channels)).astype(dtype)


def test_a_tiff_of_three_channels_is_kept():
    samples = noise(3)
    assert np.array_equal(pixels_of(tiff(samples)), samples.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (tiff(noise(3, "u2")), "16 bits"),
        (tiff(noise(4, "u2"), extra=2), "16 bits"),
        (tiff(noise(4), extra=0), "neither colour nor alpha"),
        (tiff(noise(5), extra=(2, 0)), "neither colour nor alpha"),
        (tiff(noise(4), extra=1), "multiplied by alpha"),
        (tiff(noise(1), photometric=1, format=2), "signed"),
    ],
)
def test_what_pillow_would_change_of_a_tiff_is_refused(file, words):
    made = to_lossless(file)
    assert isinstance(made, str)
    assert words in made


def test_a_png_whose_header_comes_later_is_refused():
    file, before = sixteen_bit_colour(), struct.pack(">I4sI", 0, b"aaAa", zlib.crc32(b"aaAa"))
    made = to_lossless(file[:8] + before + file[8:])
    assert isinstance(made, str)
    assert "not its first chunk" in made


# -- a folder ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, kind in (("a/1.png", "PNG"), ("a/2.tiff", "TIFF"), ("b/3.BMP", "BMP"), ("b/4.webp", "WEBP")):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(saved(photo(), kind, **({"lossless": True} if kind == "WEBP" else {})))
    return tmp_path / "in"


def run(folder: Path, to: Path, **options: Any):
    encode = options.pop("encode", "lossless")
    return ingest(ImageFolder(LocalStore(folder), encode=encode), to, **options)


def test_a_folder_of_them(folder, tmp_path):
    report = run(folder, tmp_path / "out")
    assert (report.num_samples, report.num_ignored) == (4, 0)
    assert report.manifest.schema["image"] == "image/lossless"
    counts = report.manifest.metadata["encoded"]["image"]
    assert counts["source_bytes"] == report.num_bytes == sum(path.stat().st_size for path in folder.rglob("*.*"))
    assert 0 < counts["stored_bytes"] < counts["source_bytes"]

    run(folder, tmp_path / "out", append=True, again=True)

    async def newest() -> Any:
        async with LocalStore(tmp_path / "out") as store:
            return await load_manifest(store, 2)

    twice = asyncio.run(newest()).metadata["encoded"]["image"]
    assert twice == {name: 2 * count for name, count in counts.items()}


def test_a_lossy_file_is_named(folder, tmp_path):
    (folder / "a" / "5.jpg").write_bytes(saved(photo(), "JPEG"))
    with pytest.raises(CorruptData, match=r"a JPEG.*a/5\.jpg"):
        run(folder, tmp_path / "out")
    report = run(folder, tmp_path / "out", on_error="skip")
    assert report.num_samples == 4
    assert [problem.name for problem in report.skipped] == ["a/5.jpg"]


@pytest.mark.parametrize("options", [{"encode": "png"}, {"encode": "lossless", "image_type": "jpeg"}])
def test_options_that_cannot_work(tmp_path, options):
    with pytest.raises(ConfigurationError):
        ImageFolder(LocalStore(tmp_path), **options)
