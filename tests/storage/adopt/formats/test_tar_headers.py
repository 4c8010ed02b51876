from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.adopt.formats.tar_headers import (
    MAX_LONG_NAME_BYTES,
    MAX_PAX_BYTES,
    TarMember,
    walk_members,
)
from concurrent_loader.storage.adopt.protocol import BytesReader
from concurrent_loader.storage.errors import FormatError

GOLDEN = Path(__file__).parents[1] / "golden"
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
END = bytes(1024)


def header(
    name: bytes = b"a.txt",
    size: int = 0,
    kind: bytes = b"0",
    *,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    size_field: bytes | None = None,
    signed: bool = False,
) -> bytes:
    fields = struct.pack(
        "100s8s8s8s12s12s8s1s100s8s32s32s8s8s155s12x",
        name, b"0000644\0", b"0000000\0", b"0000000\0", size_field or b"%011o\0" % size, b"00000000000\0",
        b"        ", kind, b"", magic, b"", b"", b"", b"", prefix,
    )  # fmt: skip
    total = sum(fields) - (256 * sum(byte > 127 for byte in fields) if signed else 0)
    return fields[:148] + b"%06o\0 " % total + fields[156:]


def file(name: bytes = b"a.txt", data: bytes = b"", **options: object) -> bytes:
    return header(name, len(data), **options) + padded(data)  # type: ignore[arg-type]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def pax(records: dict[bytes, bytes], kind: bytes = b"x") -> bytes:
    data = b"".join(record(keyword, value) for keyword, value in records.items())
    return header(b"pax", len(data), kind) + padded(data)


def record(keyword: bytes, value: bytes) -> bytes:
    rest = b" " + keyword + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    return header(b"././@LongLink", len(name) + 1, kind, magic=b"ustar  \0") + padded(name + b"\0")


def walk(data: bytes) -> list[TarMember]:
    return list(walk_members(BytesReader(data, "shard.tar")))


def read(data: bytes) -> list[tuple[str, bytes]]:
    return [(member.name, data[member.data_start : member.data_end]) for member in walk(data)]


# -- what other programs write -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.tar")), ids=lambda path: path.stem)
def test_golden_files_have_the_members_that_tarfile_reads(path: Path) -> None:
    data = path.read_bytes()
    with tarfile.open(path) as tar:
        expected = [
            (info.name, info.offset, info.offset_data, data[info.offset_data :][: info.size])
            for info in tar
            if info.isreg()
        ]
    assert [
        (member.name, member.start, member.data_start, data[member.data_start : member.data_end])
        for member in walk(data)
    ] == expected
    assert len(expected) >= 9


@pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
@given(
    files=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=99).filter(
                lambda name: not name.endswith("/") and len(name.encode()) < 100
            ),
            st.binary(max_size=1100),
        ),
        max_size=4,
    )
)
def test_members_are_those_that_tarfile_wrote(format_: int, files: list[tuple[str, bytes]]) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format_) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    members = walk(buffer.getvalue())
    assert read(buffer.getvalue()) == files
    assert [member.head for member in members] == [data[:16] for _, data in files]
    assert all(member.end % 512 == 0 and member.data_end <= member.end for member in members)


def test_members_of_all_kinds_of_tar_files_and_their_places() -> None:
    data = file(b"old", b"1", magic=bytes(8)) + long_name(b"n" * 300) + file(b"short", b"22") + END
    first, second = walk(data)
    assert first == TarMember("old", 0, 512, 513, 1024, b"1")
    assert second == TarMember("n" * 300, 1024, 2560, 2562, 3072, b"22")


@pytest.mark.parametrize(
    "size_field",
    [
        b"\x80" + (5).to_bytes(11, "big"),
        b"          5 ",
        b"          5\0",
        b"5\0rubbish   ",
        b"000000000005",
        b"5           ",
    ],
)
def test_sizes_in_base_256_and_with_blanks(size_field: bytes) -> None:
    data = header(b"a.b", size_field=size_field) + padded(b"12345") + file(b"next") + END
    assert read(data) == [("a.b", b"12345"), ("next", b"")]


def test_checksums_of_signed_bytes() -> None:
    assert read(file("ü.txt".encode(), b"1", signed=True) + END) == [("ü.txt", b"1")]


def test_a_prefix_is_part_of_the_name_in_ustar_only() -> None:
    assert read(file(b"a", prefix=b"dir/sub") + END)[0][0] == "dir/sub/a"
    assert read(file(b"n" * 100, prefix=b"p" * 155) + END)[0][0] == "p" * 155 + "/" + "n" * 100
    assert read(file(b"a", prefix=b"01234567012", magic=b"ustar  \0") + END)[0][0] == "a"


def test_names_that_are_not_utf_8() -> None:
    assert read(file(b"caf\xe9.txt") + END)[0][0] == "caf\udce9.txt"
    assert read(pax({b"hdrcharset": b"BINARY", b"path": b"\xe9.txt"}) + file() + END)[0][0] == "\udce9.txt"


def test_pax_headers_override_name_and_size() -> None:
    data = pax({b"comment": b"a=b\nc", b"path": b"\xc3\xbc.txt", b"size": b"3"}) + header(b"x") + padded(b"abc")
    assert read(data + file(b"next") + END) == [("ü.txt", b"abc"), ("next", b"")]
    assert walk(data + END)[0].start == 0


def test_global_headers_solaris_headers_and_long_links() -> None:
    data = pax({b"comment": b"of git archive"}, b"g") + pax({b"path": b"b"}, b"X") + file(b"x", b"1")
    assert read(data + long_name(b"target", b"K") + file(b"y") + END) == [("b", b"1"), ("y", b"")]


def test_directories_and_labels_are_left_out() -> None:
    others = file(b"dir/", kind=b"5") + file(b"old/", kind=b"\0") + file(b"label", kind=b"V")
    assert read(others + file(b"dump", b"abc", kind=b"D") + file(b"a") + END) == [("a", b"")]


def test_the_end_of_a_tar_file() -> None:
    one = file(b"a", b"1")
    for end in (b"", bytes(512), END, bytes(20 * 512), bytes((2 << 20) + 100)):
        assert read(one + end) == [("a", b"1")]
    assert read(END) == []


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[bytes, str, int]] = {
    "empty": (b"", "empty", 0),
    "hard link": (file(b"x") + file(b"link", kind=b"1"), "'link'.*hard link.*--hard-dereference", 512),
    "symbolic link": (file(b"link", kind=b"2"), "'link'.*symbolic link", 0),
    "device": (file(b"dev", kind=b"4"), "'dev'.*block device", 0),
    "FIFO": (file(b"fifo", kind=b"6"), "'fifo'.*FIFO", 0),
    "sparse": (file(b"holes", kind=b"S"), "'holes'.*--sparse", 0),
    "sparse, by PAX": (pax({b"GNU.sparse.major": b"1"}) + file(), "--sparse", 0),
    "sparse, by star": (pax({b"SCHILY.realsize": b"1"}) + file(), "--sparse", 0),
    "several volumes": (file(b"rest", kind=b"M"), "'rest'.*--multi-volume", 0),
    "unknown type": (file(b"acl", kind=b"A"), "'acl'.*unknown: 'A'", 0),
    "directory with a size": (file(b"dir/", b"abc", kind=b"5"), "'dir/'.*differently", 0),
    "old directory with a size": (file(b"dir/", b"abc", kind=b"\0"), "'dir/'.*differently", 0),
    "cut off in a header": (file(b"a") + header(b"b")[:100], "within a header", 512),
    "cut off in the data": (header(b"big", 1000) + bytes(512), "'big'.*cut off", 0),
    "cut off in the padding": (header(b"a", 3) + b"abc", "'a'.*padding", 0),
    "huge size": (header(b"huge", size_field=b"\x80" + b"\x7f" * 11), "'huge'.*cut off", 0),
    "negative size": (header(b"a", size_field=b"\xff" * 12), "number", 0),
    "size not octal": (header(b"a", size_field=b"00000000008\0"), "number", 0),
    "size with underscores": (header(b"a", size_field=b"0000000_001\0"), "number", 0),
    "size with a sign": (header(b"a", size_field=b"-0000000001\0"), "number", 0),
    "checksum": (b"b" + file(b"a.txt", b"1")[1:], "checksum", 0),
    "checksum later": (file(b"a") + b"x" * 512, "number|checksum", 512),
    "not a tar file": (b"\x89PNG" * 128, "checksum|number", 0),
    "data after the end": (file(b"a") + END + file(b"b") + END, "follows the end", 1536),
    "data after one zero block": (file(b"a") + bytes(512) + file(b"b"), "follows the end", 1024),
    "PAX header alone": (pax({b"path": b"a"}), "is the last", 1024),
    "PAX header at the end": (pax({b"path": b"a"}) + END, "is the last", 1024),
    "PAX header too long": (
        header(b"p", MAX_PAX_BYTES + 1, b"x") + bytes(MAX_PAX_BYTES + 512) + file(), "too long", 0,
    ),
    "PAX header longer than the file": (header(b"p", 5000, b"x") + bytes(512), "cut off", 0),
    "PAX size invalid": (pax({b"size": b"-1"}) + file(), "size in a PAX header", 0),
    "PAX size huge": (pax({b"size": b"9" * 40}) + file(), "size in a PAX header", 0),
    "PAX size beyond the file": (pax({b"size": b"999999"}) + file(b"lying"), "'lying'.*cut off", 1024),
    "PAX name with a zero byte": (pax({b"path": b"a\0b"}) + file(), "zero byte", 0),
    "PAX name empty": (pax({b"path": b""}) + file(), "empty", 0),
    "two PAX headers": (pax({b"path": b"a"}) + pax({b"path": b"b"}) + file(), "two extending", 1024),
    "two long names": (long_name(b"a") + long_name(b"b") + file(), "two extending", 1024),
    "two kinds of names": (long_name(b"a") + pax({b"path": b"b"}) + file(), "two names", 1024),
    "long name too long": (long_name(b"n" * MAX_LONG_NAME_BYTES) + file(), "long name is too long", 0),
    "global name": (pax({b"path": b"a"}, b"g") + file(), "global", 0),
    "global size": (pax({b"size": b"3"}, b"g") + file(), "global", 0),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_tar_file_is_refused(case: str) -> None:
    data, message, position = REFUSED[case]
    with pytest.raises(FormatError, match=message) as caught:
        walk(data)
    assert (caught.value.key, caught.value.start) == ("shard.tar", position)


@pytest.mark.parametrize(
    "data", [b"", b"x", b"5 a=b", b"99 a=b\n", b"0 a=b\n", b"6 ab \n", b"6 a=b\n6 a=", b"6 =bc\n", b"-6 a=b\n", b"3 \n"]
)
def test_records_of_pax_headers(data: bytes) -> None:
    tar = header(b"p", len(data), b"x") + padded(data) + file(b"a") + END
    if data:
        with pytest.raises(FormatError, match="a record of a PAX header is invalid"):
            walk(tar)
    else:
        assert read(tar) == [("a", b"")]


@pytest.mark.parametrize(
    "compress",
    [gzip.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress],
    ids=["gzip", "bzip2", "xz", "zstd"],
)
def test_compressed_tar_files_name_the_way_out(compress: Callable[[bytes], bytes]) -> None:
    data = compress(b"".join(file(b"%d" % at, bytes(range(256)) * 2) for at in range(20)) + END)
    for each in (data, data + bytes(1024)):
        with pytest.raises(FormatError, match=r"compressed with .*ingest tar"):
            walk(each)


def test_names_in_messages_are_short_and_printable() -> None:
    with pytest.raises(FormatError) as caught:
        walk(long_name(b"\x1b[2J\n" * 1000) + header(b"a", 5000))
    assert "\\x1b[2J\\n" in str(caught.value)
    assert len(str(caught.value)) < 2000


# -- damage ------------------------------------------------------------------------------------------------------------

WHOLE = (
    file(b"a.jpg", b"\xff\xd8\xff" * 300)
    + pax({b"path": b"b.jpg", b"size": b"5"})
    + file(b"x", b"12345")
    + long_name(b"c" * 200)
    + file(b"y")
    + END
)


@given(data=st.data())
def test_damaged_bytes_give_format_errors_and_places_in_the_file(data: st.DataObject) -> None:
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        members = walk(bytes(damaged))
    except FormatError:
        return
    end = 0
    for member in members:
        assert end <= member.start < member.data_start <= member.data_end <= member.end <= len(damaged)
        end = member.end


def test_a_tar_file_may_be_cut_off_between_members_only() -> None:
    borders = {0, len(WHOLE) - 1024}
    for end in range(0, len(WHOLE), 64):
        try:
            names = [member.name for member in walk(WHOLE[:end])]
        except FormatError:
            continue
        assert names == ["a.jpg", "b.jpg", "c" * 200][: len(names)]
        borders.add(end)
    assert {border % 512 for border in borders if border < len(WHOLE) - 1024} == {0}
