"""Lossless images: what goes in comes out, in numpy and in C, whole and in boxes; all else is a FormatError."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrent_loader.storage.errors import ConfigurationError, FormatError, SchemaError
from concurrent_loader.storage.lossless import decode, encode, has_native_lossless, native, parse_header
from concurrent_loader.storage.lossless.decoder import index_units, plain_sections
from concurrent_loader.storage.lossless.layout import HEADER_BYTES, PACKED, PLAIN, parse_groups

NATIVE = [False, True] if has_native_lossless() else [False]
KINDS = [(1, np.uint8), (2, np.uint8), (3, np.uint8), (4, np.uint8), (1, np.uint16)]


def make_image(
    channels: int, height: int, width: int, dtype=np.uint8, *, noise: float = 2.0, seed: int = 0
) -> np.ndarray:
    """Soft shapes and some noise."""
    dice = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    soft = [0.4 + 0.2 * np.sin(x / 17 + at) + 0.2 * np.cos(y / 11 - at) for at in range(channels)]
    most = np.iinfo(dtype).max
    pixels = np.stack(soft) * most + dice.normal(0, noise * most / 255, (channels, height, width))
    return pixels.clip(0, most).astype(dtype)


@st.composite
def images(draw):
    channels, dtype = draw(st.sampled_from(KINDS))
    height, width = draw(st.integers(1, 140)), draw(st.integers(1, 150))
    kind = draw(st.sampled_from(["soft", "noise", "flat", "ends", "gray"]))
    seed = draw(st.integers(0, 99))
    dice, most = np.random.default_rng(seed), np.iinfo(dtype).max
    if kind == "soft":
        return make_image(channels, height, width, dtype, noise=draw(st.sampled_from([0, 1, 5, 40])), seed=seed)
    if kind == "noise":
        return dice.integers(0, most + 1, (channels, height, width)).astype(dtype)
    if kind == "flat":
        return np.full((channels, height, width), draw(st.integers(0, most)), dtype)
    if kind == "ends":
        return (dice.integers(0, 2, (channels, height, width)) * most).astype(dtype)
    return np.repeat(make_image(1, height, width, dtype, seed=seed), channels, axis=0)


@given(pixels=images(), compress=st.booleans(), data=st.data())
def test_what_goes_in_comes_out(pixels, compress, data):
    files = [encode(pixels, compress=compress, native=module) for module in NATIVE]
    assert len(set(files)) == 1
    channels, height, width = pixels.shape
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = (top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left)))
    opaque = {1: 1, 2: 1, 3: 3, 4: 3}[channels]
    for module in NATIVE:
        whole = decode(files[0], native=module)
        assert whole.dtype == pixels.dtype
        assert np.array_equal(whole, pixels)
        part = decode(memoryview(files[0]), native=module, box=box, alpha=False)
        assert np.array_equal(part, pixels[:opaque, top : top + box[2], left : left + box[3]])


@pytest.mark.parametrize("module", NATIVE)
@pytest.mark.parametrize(("channels", "dtype"), KINDS)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (64, 64), (65, 63), (128, 4), (66, 600), (64, 513)])
def test_sizes_around_tiles_and_groups(channels, dtype, height, width, module):
    pixels = make_image(channels, height, width, dtype)
    file = encode(pixels, native=module)
    header = parse_header(file)
    assert (header.shape, header.dtype) == (pixels.shape, pixels.dtype)
    assert np.array_equal(decode(file, native=module), pixels)


def test_it_is_smaller_than_its_samples_and_never_larger_than_they_are():
    soft = make_image(3, 300, 500)
    assert len(encode(soft)) < len(encode(soft, compress=False)) < 0.7 * soft.nbytes
    noise = np.random.default_rng(0).integers(0, 256, (3, 100, 70)).astype(np.uint8)
    file = encode(noise)
    assert (parse_header(file).mode, len(file)) == (PLAIN, HEADER_BYTES + noise.nbytes)


def test_any_memory_layout_and_byte_order_is_welcome():
    pixels = make_image(3, 70, 80)
    assert encode(np.ascontiguousarray(pixels.transpose(1, 2, 0)).transpose(2, 0, 1)) == encode(pixels)
    deep = make_image(1, 70, 80, np.uint16)
    assert encode(deep.astype(">u2")) == encode(deep)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((5, 2, 2), np.uint8), np.zeros((0, 2, 2), np.uint8), np.zeros((3, 0, 2), np.uint8),
        np.zeros((2, 2), np.uint8), np.zeros((3, 2, 2), np.uint16), np.zeros((1, 2, 2), np.int16),
        np.zeros((1, 2, 2), np.float32),
    ],
)  # fmt: skip
def test_other_arrays_are_refused(pixels):
    with pytest.raises(SchemaError):
        encode(pixels)


@pytest.mark.parametrize("box", [(0, 0, 0, 1), (-1, 0, 1, 1), (0, 0, 71, 1), (0, 79, 1, 2), (0, 80, 1, 1)])
def test_a_box_lies_within_the_picture(box):
    with pytest.raises(ValueError, match="box"):
        decode(encode(make_image(1, 70, 80)), box=box)


@pytest.mark.parametrize("compress", [True, False])
def test_a_box_reads_only_its_own_groups(compress):
    pixels = make_image(3, 400, 1500)
    file = bytearray(encode(pixels, compress=compress))
    groups = parse_groups(file, parse_header(file))
    box = (130, 600, 100, 300)
    touched = groups.touching(*box)
    assert 0 < len(touched) < len(groups)
    mine = set(touched.start.tolist())
    for start, length in zip(groups.start, groups.stored_bytes + groups.rest_bytes, strict=True):
        if int(start) not in mine:
            file[start : start + length] = bytes(int(length))
    for module in NATIVE:
        assert np.array_equal(decode(file, box=box, native=module), pixels[:, 130:230, 600:900])
        with pytest.raises(FormatError):
            decode(file, native=module)


def test_many_threads_decode_at_once():
    pixels = [make_image(3, 150, 200, seed=seed) for seed in range(8)]
    files = [encode(each) for each in pixels]
    wrong = []

    def work(at: int) -> None:
        for turn in range(10):
            which = (at + turn) % len(files)
            if not np.array_equal(decode(files[which]), pixels[which]):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- bytes that are not what they seem ---------------------------------------------------------------------------------


def outcome(data: bytes, module: bool):
    """The pixels, or that there are none."""
    try:
        return decode(data, native=module, max_pixels=1 << 20)
    except FormatError:
        return None


def agree(data: bytes) -> None:
    found = [outcome(data, module) for module in NATIVE]
    for other in found[1:]:
        assert (found[0] is None) == (other is None)
        assert found[0] is None or np.array_equal(found[0], other)


@pytest.mark.parametrize("compress", [True, False])
def test_a_file_that_was_cut_is_no_picture(compress):
    file = encode(make_image(3, 66, 70), compress=compress)
    for end in [*range(200), *range(200, len(file), 97)]:
        for module in NATIVE:
            with pytest.raises(FormatError):
                decode(file[:end], native=module)
    with pytest.raises(FormatError):
        decode(file + b"\0")


SEEDS = [
    encode(make_image(channels, *size, dtype), compress=compress)
    for channels, dtype in KINDS for size in ((9, 70), (70, 9)) for compress in (True, False)
]  # fmt: skip


@settings(settings.get_profile("thorough"))
@given(data=st.data())
def test_changed_bytes_are_an_error_or_another_picture(data):
    file = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(0, min(200, len(file) - 1)), st.integers(0, len(file) - 1)))
        file[at] = data.draw(st.integers(0, 255))
    agree(bytes(file))


@settings(settings.get_profile("thorough"))
@given(rubbish=st.binary(max_size=300), start=st.integers(0, 60))
def test_rubbish_is_an_error_or_another_picture(rubbish, start):
    agree(SEEDS[5][:start] + rubbish)


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 0), (4, 2), (5, 2), (6, 0), (6, 5), (7, 9), (16, 32), (17, 0), (18, 1), (11, 2), (15, 2)],
)
def test_every_field_of_the_header_is_checked(at, value):
    file = bytearray(encode(make_image(3, 66, 70)))
    file[at] = value
    with pytest.raises(FormatError):
        parse_header(file)
        decode(file)


def test_a_size_is_held_against_the_cap_and_the_file_before_memory_is_taken():
    file = bytearray(encode(make_image(1, 66, 70)))
    with pytest.raises(FormatError, match="too large"):
        decode(file, max_pixels=66 * 70 - 1)
    file[8:16] = (1 << 24).to_bytes(4, "little") * 2
    with pytest.raises(FormatError, match="too large"):
        decode(file)
    with pytest.raises(FormatError, match="ends within its table"):
        decode(file, max_pixels=1 << 60)
    file[5] = PLAIN
    with pytest.raises(FormatError, match="length"):
        decode(file, max_pixels=1 << 60)


def group(file: bytes) -> tuple[bytearray, int]:
    """A file of one group that is not compressed, and where its coded section begins."""
    assert parse_header(file).mode == PACKED
    return bytearray(file), HEADER_BYTES + 12


@pytest.mark.parametrize("module", NATIVE)
@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (0, 0b11, "predictor"), (0, 0b01000000, "predictor"), (1, 2, "color"), (2 + 3, 0x09, "width"),
        (2 + 3, 0x00, "length"), (2 + 3, 0x88, "length"),
    ],
)  # fmt: skip
def test_modes_and_widths_are_checked(offset, value, words, module):
    file, start = group(encode(make_image(3, 60, 60, noise=9), compress=False))
    file[start + offset] = value
    with pytest.raises(FormatError, match=words):
        decode(file, native=module)


@pytest.mark.parametrize("module", NATIVE)
def test_a_frame_that_promises_another_length_is_refused(module):
    file = encode(make_image(1, 60, 60))
    header = parse_header(file)
    stored, coded, rest = np.frombuffer(file[HEADER_BYTES : HEADER_BYTES + 12], "<u4").tolist()
    assert stored < coded
    body = file[-rest:] if rest else b""
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 24))
    for frame in (bomb, zstandard.ZstdCompressor().compress(bytes(coded - 1)), b"\x28\xb5\x2f\xfd" + bytes(20)):
        table = np.array([len(frame), coded, rest], "<u4").tobytes()
        with pytest.raises(FormatError):
            decode(header.to_bytes() + table + frame + body, native=module)


# -- for accelerators --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "dtype"), KINDS)
def test_units_are_found_alike(channels, dtype):
    file = encode(make_image(channels, 130, 700, dtype))
    header = parse_header(file)
    groups = parse_groups(file, header)
    coded = plain_sections(file, groups)
    found = [index_units(file, header, groups, coded, native=module) for module in NATIVE]
    assert found[0].shape == (int(groups.num_tiles.sum()) * channels, 3)
    for other in found[1:]:
        assert np.array_equal(found[0], other)
    coded[0] = bytes(coded[0])[:-1]
    for module in NATIVE:
        with pytest.raises(FormatError):
            index_units(file, header, groups, coded, native=module)


def test_without_the_module_numpy_does_it(monkeypatch):
    monkeypatch.setattr(native, "_module", None)
    assert not has_native_lossless()
    pixels = make_image(3, 20, 30)
    assert np.array_equal(decode(encode(pixels)), pixels)
    with pytest.raises(ConfigurationError, match="not built"):
        encode(pixels, native=True)
