"""Decoders of all libraries against Pillow's pictures of the same bytes."""

from __future__ import annotations

import functools
import io
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from concurrent_loader.decode import available_backends, make_decoder, parse_header
from concurrent_loader.decode.backends import libraries
from concurrent_loader.decode.backends.buffer_view import as_tensor
from concurrent_loader.decode.backends.libraries import LIBRARIES, libraries_of
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.images import FORMATS

BACKENDS = ["auto", "torchcodec", "torchvision", "simplejpeg", "pillow"]
HEIGHT, WIDTH = 48, 64


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def picture(mode: str = "RGB") -> Image.Image:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    image = Image.fromarray(np.stack([y * 5, x * 4 % 256, (x + y) * 2], -1).astype(np.uint8))
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray((x * 4).astype(np.uint8)))
    return image if mode == "RGB" else image.convert(mode)


def encoded(image: Image.Image, file_format: str, **options: Any) -> bytes:
    target = io.BytesIO()
    image.save(target, file_format, **options)
    return target.getvalue()


def orientation(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def with_segment(jpeg: bytes, data: bytes, *, first: bool) -> bytes:
    """Adds an APP1 segment, in front of the EXIF segment or behind it."""
    place = 2 if first else jpeg.index(b"Exif\0\0") - 2 + int.from_bytes(jpeg[(at := jpeg.index(b"Exif\0\0")) - 2 : at])
    return jpeg[:place] + b"\xff\xe1" + (len(data) + 2).to_bytes(2) + data + jpeg[place:]


def ycck(cmyk: bytes) -> bytes:
    """The same numbers, declared to be YCCK by Adobe's marker."""
    at = cmyk.index(b"Adobe") + 11
    assert cmyk[at] == 0
    return cmyk[:at] + b"\2" + cmyk[at + 1 :]


def reference(data: bytes, mode: str) -> torch.Tensor:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    pixels = np.array(image if mode == "unchanged" else image.convert({"rgb": "RGB", "gray": "L"}[mode]))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


IMAGES = {
    "baseline": encoded(picture(), "JPEG", quality=95),
    "subsampled": encoded(picture(), "JPEG", quality=90, subsampling="4:2:0"),
    "progressive": encoded(picture(), "JPEG", quality=95, progressive=True),
    "gray jpeg": encoded(picture("L"), "JPEG", quality=95),
    "cmyk jpeg": encoded(picture("CMYK"), "JPEG", quality=95),
    "png": encoded(picture(), "PNG"),
    "gray png": encoded(picture("L"), "PNG"),
    "rgba png": encoded(picture("RGBA"), "PNG"),
    "la png": encoded(picture("LA"), "PNG"),
    "lossy webp": encoded(picture(), "WEBP", quality=90),
    "lossless webp": encoded(picture(), "WEBP", lossless=True),
    "rgba webp": encoded(picture("RGBA"), "WEBP", lossless=True, exact=True),
    **{f"turned {n} jpeg": encoded(picture(), "JPEG", exif=orientation(n), quality=95) for n in range(1, 9)},
    "turned jpeg, XMP first": with_segment(
        encoded(picture(), "JPEG", exif=orientation(6), quality=95), b"http://ns.adobe.com/xap/1.0/\0<x/>", first=True
    ),
    "turned jpeg, EXIF continued": with_segment(
        encoded(picture(), "JPEG", exif=orientation(6), quality=95), b"Exif\0\0more of it", first=False
    ),
    "turned png": encoded(picture(), "PNG", exif=orientation(6)),
    "turned webp": encoded(picture(), "WEBP", lossless=True, exif=orientation(6)),
    "turned lossy webp": encoded(picture(), "WEBP", quality=90, exif=orientation(8)),
    "avif": encoded(picture(), "AVIF", quality=80),
    "full avif": encoded(picture(), "AVIF", quality=100, subsampling="4:4:4"),
    "gray avif": encoded(picture("L"), "AVIF"),
    "rgba avif": encoded(picture("RGBA"), "AVIF"),
    **{f"turned {n} avif": encoded(picture(), "AVIF", exif=orientation(n)) for n in range(1, 9)},
    "gray gif": encoded(picture("L"), "GIF"),
    "ycck jpeg": ycck(encoded(picture("CMYK"), "JPEG", quality=95)),
    "rgb jpeg": encoded(picture(), "JPEG", keep_rgb=True),
    "turned gray jpeg": encoded(picture("L"), "JPEG", exif=orientation(6)),
}


@pytest.mark.parametrize("mode", ["rgb", "gray", "unchanged"])
@pytest.mark.parametrize("name", IMAGES)
def test_pictures_are_pillows(name: str, mode: str, backend: Any) -> None:
    data = IMAGES[name]
    got = make_decoder(mode, "image", backend=backend)(data)
    expected = reference(data, mode)
    assert got.dtype == torch.uint8
    assert got.shape == expected.shape
    # Rounding of gray from RGB differs by one level between the libraries; nothing else does.
    assert (got.int() - expected.int()).abs().max() <= (1 if mode == "gray" else 0)


@pytest.mark.parametrize("mode", ["rgb", "gray", "unchanged"])
def test_palettes_are_spread_out(mode: str, backend: Any) -> None:
    decode = make_decoder(mode, "png", backend=backend)
    palette = picture().quantize(16)
    plain, cut_out = encoded(palette, "PNG"), encoded(palette, "PNG", transparency=3)
    expected = reference(encoded(palette.convert("RGB"), "PNG"), mode)
    assert (decode(plain).int() - expected.int()).abs().max() <= 1
    assert decode(cut_out).shape[0] == {"rgb": 3, "gray": 1, "unchanged": 4}[mode]


@pytest.mark.parametrize("transparency", [None, 3])
@pytest.mark.parametrize("interlace", [False, True])
@pytest.mark.parametrize("mode", ["rgb", "gray", "unchanged"])
def test_gifs(mode: str, interlace: bool, transparency: int | None, backend: Any) -> None:
    options = {} if transparency is None else {"transparency": transparency}
    data = encoded(picture().quantize(16), "GIF", interlace=interlace, **options)
    got = make_decoder(mode, "gif", backend=backend)(data)
    expected = reference(data, mode)
    assert got.shape[0] == {"rgb": 3, "gray": 1, "unchanged": 3 if transparency is None else 4}[mode]
    assert (got.int() - expected.int()).abs().max() <= 1


def sixteen_bit_png(pixels: np.ndarray) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, num_channels = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[num_channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("num_channels", [1, 2, 3, 4])
def test_16_bits_become_8_unless_unchanged(num_channels: int, backend: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 1 << 16, (8, 16, num_channels), dtype=np.uint16)
    data = sixteen_bit_png(pixels)
    colours = pixels[..., : 3 if num_channels > 2 else 1].transpose(2, 0, 1) / 257
    rgb = make_decoder("rgb", "png", backend=backend)(data)
    assert (rgb.dtype, rgb.shape) == (torch.uint8, (3, 8, 16))
    assert np.abs(rgb.numpy() - colours).max() <= 1
    gray = make_decoder("gray", "png", backend=backend)(data)
    expected = np.tensordot([0.299, 0.587, 0.114], colours, 1) if num_channels > 2 else colours[0]
    assert gray.dtype == torch.uint8
    assert np.abs(gray[0].numpy() - expected).max() <= 1.5
    decode = make_decoder("unchanged", "png", backend=backend)
    if num_channels > 1 and backend not in ("auto", "torchcodec"):
        with pytest.raises(DecodeError, match="torchcodec"):  # Pillow would halve the bits in silence
            decode(data)
        return
    whole = decode(data)
    assert whole.dtype == torch.uint16
    assert np.array_equal(whole.numpy(), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["gray", "unchanged"])
def test_bits_become_bytes(mode: str, backend: Any) -> None:
    decode = make_decoder(mode, "png", backend=backend)
    bits = Image.fromarray(np.arange(64).reshape(8, 8) % 3 == 0)
    assert decode(encoded(bits, "PNG"))[0].numpy().tolist() == (np.array(bits) * 255).tolist()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data)).toreadonly()])
def test_any_buffer_will_do(kind: Any, backend: Any) -> None:
    data = IMAGES["baseline"]
    expected = make_decoder("rgb", "jpeg", backend=backend)(data)
    padded = b"left" + data + b"right"
    assert torch.equal(make_decoder("rgb", "jpeg", backend=backend)(kind(data)), expected)
    assert torch.equal(make_decoder("rgb", "jpeg", backend=backend)(memoryview(padded)[4:-5]), expected)


@pytest.mark.parametrize("name", ["baseline", "progressive", "png", "lossy webp", "lossless webp", "avif", "gray gif"])
def test_truncated_images_are_errors(name: str, backend: Any) -> None:
    data = IMAGES[name]
    decode = make_decoder("rgb", "image", backend=backend)
    for end in [*range(60), len(data) // 3, len(data) // 2, len(data) * 2 // 3, len(data) - 60]:
        with pytest.raises(DecodeError) as caught:
            decode(data[:end])
        assert caught.value.stage == "decode"


def test_flipped_bits_give_a_picture_or_a_decode_error(backend: Any) -> None:
    # Not so with torchvision's own PNG decoder, which ends the process: that is why Pillow stands in for it.
    random = np.random.default_rng(0)
    decode = make_decoder("rgb", "image", backend=backend, max_pixels=100_000)
    for name in (
        "baseline",
        "progressive",
        "turned 6 jpeg",
        "png",
        "rgba png",
        "lossless webp",
        "lossy webp",
        "avif",
        "gray gif",
    ):
        for _ in range(100):
            data = bytearray(IMAGES[name])
            data[random.integers(len(data))] ^= 1 << random.integers(8)
            try:
                assert decode(data).shape[0] == 3
            except DecodeError as error:
                assert str(error)  # noqa: PT017 - both outcomes are right


def test_the_cause_is_kept(backend: Any) -> None:
    data = IMAGES["png"]
    with pytest.raises(DecodeError, match="damaged png") as caught:
        make_decoder("rgb", "png", backend=backend)(data[: len(data) // 2])
    assert caught.value.__cause__ is not None


def png_bomb(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def claiming(data: bytes, width: int, height: int) -> bytes:
    """A baseline JPEG whose frame header lies."""
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


@pytest.mark.parametrize(
    "bomb",
    [
        png_bomb(50_000, 50_000),
        claiming(IMAGES["baseline"], 65_000, 65_000),
        b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + b"\xff\x3f\0\xff\x3f\0" + bytes(40),
    ],
)
def test_too_large_pictures_are_refused_before_memory_is_taken(bomb: bytes, backend: Any) -> None:
    decode = make_decoder("rgb", "image", backend=backend)
    tracemalloc.start()
    with pytest.raises(DecodeError, match="too large"):
        decode(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_the_cap_on_pixels_is_exact(backend: Any) -> None:
    for name in ("baseline", "png", "lossy webp", "turned webp"):
        data = IMAGES[name]
        make_decoder("rgb", "image", backend=backend, max_pixels=HEIGHT * WIDTH)(data)
        with pytest.raises(DecodeError, match="64 x 48"):
            make_decoder("rgb", "image", backend=backend, max_pixels=HEIGHT * WIDTH - 1)(data)


def test_a_webp_whose_canvas_lies_is_refused(backend: Any) -> None:
    data = bytearray(IMAGES["turned webp"])
    assert data[12:16] == b"VP8X"
    data[24:30] = b"\x01\0\0\x01\0\0"  # 2 x 2, so the cap does not see the real size
    assert parse_header(data).num_pixels == 4
    with pytest.raises(DecodeError):
        make_decoder("rgb", "webp", backend=backend)(data)


@pytest.mark.slow
def test_a_large_picture_within_the_cap_is_no_bomb(backend: Any) -> None:
    # 90 million pixels: Pillow's own Image.open would warn, and warnings are errors here.
    data = encoded(Image.new("L", (10_000, 9_000)), "PNG")
    assert make_decoder("gray", "png", backend=backend)(data).shape == (1, 9_000, 10_000)


def test_what_pillow_calls_a_bomb_is_a_decode_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a WebP it looks at its process-wide cap even here, and a caller's cap may be larger.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    with pytest.raises(DecodeError, match="MAX_IMAGE_PIXELS"):
        make_decoder("rgb", "webp", backend="pillow")(IMAGES["turned webp"])


def test_formats_must_fit_the_column(backend: Any) -> None:
    for column_type, name in [("jpeg", "png"), ("png", "lossy webp"), ("webp", "baseline")]:
        with pytest.raises(DecodeError, match="does not match its column"):
            make_decoder("rgb", column_type, backend=backend)(IMAGES[name])
    for column_type in ("image", "bytes"):
        assert make_decoder("rgb", column_type, backend=backend)(IMAGES["png"]).shape == (3, HEIGHT, WIDTH)


def test_animated_webp_is_refused(backend: Any) -> None:
    data = encoded(picture(), "WEBP", save_all=True, append_images=[ImageOps.invert(picture())])
    with pytest.raises(DecodeError, match="an animation is more than one image"):
        make_decoder("rgb", "webp", backend=backend)(data)


@pytest.mark.parametrize("file_format", ["GIF", "AVIF"])
def test_other_animations_are_refused(file_format: str, backend: Any) -> None:
    data = encoded(picture(), file_format, save_all=True, append_images=[ImageOps.invert(picture())])
    with pytest.raises(DecodeError, match="an animation is more than one image"):
        make_decoder("rgb", "image", backend=backend)(data)


def test_threads_give_what_one_gives(backend: Any) -> None:
    decode = make_decoder("rgb", "image", backend=backend)
    work = list(IMAGES.values()) * 4
    with ThreadPoolExecutor(8) as threads:
        for got, data in zip(threads.map(decode, work), work, strict=True):
            assert torch.equal(got, decode(data))


# -- functions ---------------------------------------------------------------------------------------------------------


def test_a_function_replaces_the_decoder() -> None:
    decode = make_decoder(lambda data: torch.tensor([len(data)]), "float32[...]")
    assert decode(b"abc").tolist() == [3]


def test_a_function_that_fails_is_a_decode_error_with_its_cause() -> None:
    def fails(data: Any) -> torch.Tensor:
        raise KeyError("why")

    with pytest.raises(DecodeError, match=r"KeyError.*why") as caught:
        make_decoder(fails, "bytes")(b"")
    assert isinstance(caught.value.__cause__, KeyError)


# -- arguments and libraries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"spec": "bgr"},
        {"spec": "RGB"},
        {"column_type": "str"},
        {"column_type": "uint8[...]"},
        {"backend": "cv2"},
        {"max_pixels": 0},
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        make_decoder(**{"spec": "rgb", "column_type": "jpeg", **arguments})


def test_all_libraries_are_here() -> None:
    assert available_backends() == ("torchcodec", "torchvision", "simplejpeg", "pillow")
    assert available_backends("jpeg") == libraries_of("jpeg")
    assert available_backends("gif") == ("pillow",)


def test_every_encoding_has_a_library_here_for_every_name() -> None:
    assert set(FORMATS) == set(chain(*(library.formats for library in LIBRARIES.values())))
    for name in LIBRARIES:
        module = import_module(f"concurrent_loader.decode.backends.{name}")
        assert LIBRARIES[name].formats <= set(module.FORMATS)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes libraries absent."""

    def hide(*names: str) -> None:
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)
            monkeypatch.delitem(sys.modules, f"concurrent_loader.decode.backends.{name}", raising=False)
            monkeypatch.delattr(f"concurrent_loader.decode.backends.{name}", raising=False)
        libraries._load.cache_clear()

    yield hide
    libraries._load.cache_clear()


def chosen(encoding: str) -> str:
    decode = libraries._choose(encoding, "auto")
    assert decode is not None
    return decode.__module__.rpartition(".")[2]


def test_what_is_installed_decides(without: Callable[..., None]) -> None:
    assert [chosen(name) for name in ("jpeg", "png", "webp", "avif")] == ["simplejpeg", *["torchcodec"] * 3]
    without("simplejpeg")
    assert [chosen(name) for name in ("jpeg", "png", "webp", "avif")] == ["torchcodec"] * 4
    without("torchcodec")
    assert available_backends() == ("torchvision", "pillow")
    assert [chosen(name) for name in ("jpeg", "png", "webp")] == ["torchvision", "pillow", "torchvision"]
    assert make_decoder("rgb", "jpeg")(IMAGES["baseline"]).shape == (3, HEIGHT, WIDTH)
    for absent, needed in (("torchcodec", "torchcodec>=0.16"), ("simplejpeg", "simplejpeg")):
        with pytest.raises(ConfigurationError, match=rf"cannot be used.*pip install.*{needed}"):
            make_decoder("rgb", "jpeg", backend=cast("Any", absent))


def test_what_no_library_here_decodes_says_what_to_install(
    without: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    without("torchcodec")
    monkeypatch.setattr("concurrent_loader.decode.backends.pillow.FORMATS", frozenset({"jpeg", "png", "webp", "gif"}))
    with pytest.raises(ConfigurationError, match=r"pip install 'torchcodec>=0.16' or pip install 'pillow>=11.3'"):
        make_decoder("rgb", "avif")
    decode = make_decoder("rgb", "image")
    assert decode(IMAGES["png"]).shape == (3, HEIGHT, WIDTH)
    with pytest.raises(DecodeError, match=r"pip install 'torchcodec>=0.16' or pip install 'pillow>=11.3'"):
        decode(IMAGES["avif"])


@pytest.mark.processes
def test_no_warning_reaches_the_user_and_no_filter_is_changed() -> None:
    program = """
import sys, warnings
from concurrent_loader.decode import make_decoder
data = sys.stdin.buffer.read()
for backend in ("torchcodec", "torchvision", "simplejpeg", "pillow"):
    decode = make_decoder("rgb", "jpeg", backend=backend)  # imports the library, which may bring filters of its own
    before = list(warnings.filters)
    decode(data)
    assert warnings.filters == before, backend
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], input=IMAGES["baseline"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""


# -- encoded bytes as tensors ------------------------------------------------------------------------------------------


def test_bytes_become_a_tensor_without_a_copy() -> None:
    for data in (bytes(range(256)), bytearray(range(256)), memoryview(bytes(range(256)))[3:200]):
        tensor = as_tensor(data)
        assert bytes(tensor.numpy()) == bytes(data)
        address = np.frombuffer(cast("Any", data), np.uint8).__array_interface__["data"][0]
        assert tensor.data_ptr() == address
    assert as_tensor(b"").shape == (0,)


def test_a_tensor_keeps_its_bytes_alive() -> None:
    tensors = [as_tensor(bytes([n]) * 100_000) for n in range(50)]
    assert all(tensor.min() == tensor.max() == n for n, tensor in enumerate(tensors))


def test_a_function_gets_what_its_type_hint_says() -> None:
    seen: list[type] = []

    def plain(data) -> torch.Tensor:  # type: ignore[no-untyped-def]
        seen.append(type(data))
        return torch.zeros(1)

    def view(data: memoryview) -> torch.Tensor:
        seen.append(type(data))
        return torch.zeros(1)

    def string_of_bytes(data: bytes) -> torch.Tensor:
        assert data.startswith(b"ab")
        return torch.zeros(1)

    for data in (b"abc", memoryview(b"abc"), bytearray(b"abc")):
        for function in (plain, view, string_of_bytes, functools.partial(view), len):
            make_decoder(function, "bytes")(data)
    assert seen == [bytes, memoryview, memoryview] * 3
