from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import webdataset
import zstandard
from webdataset.tariterators import group_by_keys, tar_file_expander

from concurrent_loader.storage.errors import ConfigurationError, CorruptData, FormatError, NotFound
from concurrent_loader.storage.importers import TarFiles
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.importers.tar_stream import read_members
from concurrent_loader.storage.stores import open_store

pytestmark = pytest.mark.usefixtures("no_leaks")


def tar_of(files: list[tuple[str, bytes]], mode: str = "w", **options: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, **options) as archive:  # type: ignore[call-overload]
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def texts(number: int, start: int = 0) -> list[tuple[str, bytes]]:
    return [(f"{at:06}.txt", f"text {at}".encode()) for at in range(start, start + number)]


@pytest.mark.slow
def test_what_webdataset_wrote_arrives(tmp_path: Path, url: str, encoded: Any, samples_of: Any) -> None:
    npy = io.BytesIO()
    np.save(npy, np.arange(6, dtype=np.float32).reshape(2, 3))
    written = [
        {"__key__": f"dir/a{at:04}", "jpg": encoded(at), "cls": at % 10, "json": {"at": at}, "txt": f"é {at}",
         "seg.png": encoded(at, "PNG"), "x.npy": npy.getvalue()} for at in range(100)
    ]  # fmt: skip
    for shard in range(2):
        with webdataset.TarWriter(str(tmp_path / f"{shard}.tar"), encoder=True) as writer:
            for sample in written[shard * 50 : shard * 50 + 50]:
                writer.write(sample)
    report = ingest(TarFiles(tmp_path, columns={"x.npy": "float32[...]"}), url)
    assert report.manifest.schema == {
        "__key__": "str", "cls": "int64", "jpg": "jpeg", "json": "json", "seg.png": "png", "txt": "str",
        "x.npy": "float32[...]",
    }  # fmt: skip
    expected = []
    for shard in range(2):
        with (tmp_path / f"{shard}.tar").open("rb") as file:
            expected += list(group_by_keys(tar_file_expander([{"url": "x", "stream": file}])))
    for ours, theirs in zip(samples_of(url), expected, strict=True):
        assert ours["__key__"] == theirs["__key__"]
        assert (ours["jpg"], ours["seg.png"]) == (theirs["jpg"], theirs["seg.png"])
        assert (ours["cls"], ours["txt"]) == (int(theirs["cls"]), theirs["txt"].decode())
        assert ours["json"] == json.loads(theirs["json"])
        assert ours["x.npy"].tolist() == np.load(io.BytesIO(theirs["x.npy"])).tolist()


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_compression_and_form_in_any_store(url: str, samples_of: Any, suffix: str, form: int) -> None:
    folder = "f" * 90 if form == tarfile.USTAR_FORMAT else "long/" * 60
    files = [(f"{folder}/{at}.txt", f"text {at}".encode()) for at in range(20)]
    if suffix == "tar.zst":
        data = zstandard.compress(tar_of(files, format=form))
    else:
        data = tar_of(files, {"tar": "w"}.get(suffix, f"w:{suffix[4:]}"), format=form)
    source = f"memory://tar-{uuid4()}"
    asyncio.run(open_store(source).put(f"in/x.{suffix}", data))
    ingest(TarFiles(f"{source}/in/x.{suffix}"), url)
    assert samples_of(url) == [{"__key__": name.removesuffix(".txt"), "txt": data.decode()} for name, data in files]


@pytest.mark.slow
def test_many_megabytes_are_fetched_in_pieces(url: str, samples_of: Any) -> None:
    rng = np.random.default_rng(0)
    files = [(f"{at}.bin", rng.bytes(1_500_000)) for at in range(20)]
    source = f"memory://tar-{uuid4()}"
    asyncio.run(open_store(source).put("x.tar", tar_of(files)))
    ingest(TarFiles(source), url)
    assert [(sample["__key__"] + ".bin", sample["bin"]) for sample in samples_of(url)] == files


def test_types_follow_the_data_and_the_user(tmp_path: Path, url: str, encoded: Any, samples_of: Any) -> None:
    files = []
    for at in range(4):
        files += [(f"{at}.jpg", encoded(at, "PNG" if at % 2 else "JPEG")), (f"{at}.cls", b"cat"), (f"{at}.n", b"7"),
                  (f"{at}.TXT", b"\xff")]  # fmt: skip
    (tmp_path / "x.tar").write_bytes(tar_of(files))
    report = ingest(TarFiles(tmp_path / "x.tar", columns={"n": "int32"}, drop=["cls"]), url)
    assert report.manifest.schema == {"__key__": "str", "jpg": "image", "n": "int32", "txt": "bytes"}
    assert [(sample["n"], sample["txt"]) for sample in samples_of(url)] == [(7, b"\xff")] * 4


def test_other_members_are_ignored(tmp_path: Path, url: str, samples_of: Any) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, kind in (("d", tarfile.DIRTYPE), ("a.link", tarfile.SYMTYPE), ("b.hard", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        for name in ("__meta__/x.txt", ".hidden.txt", "no-extension", "._a.txt", "a.txt", "./d/b.txt"):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"hi"))
    ingest(TarFiles(tmp_path), url)
    assert samples_of(url) == [{"__key__": "a", "txt": "hi"}, {"__key__": "d/b", "txt": "hi"}]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([("c.txt", b"c"), ("c.jpg", b"c")], "another field: jpg"),
        ([("c.jpg", b"c")], "no txt"),
        ([("c.txt", b"c"), ("c.txt", b"c")], "two files 'c.txt'"),
        ([("c.txt", b"\xff")], "txt is not str: it is not UTF-8"),
    ],
)
def test_a_bad_sample_is_named(tmp_path: Path, url: str, samples_of: Any, files: Any, reason: str) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of([*texts(200), *files, *texts(1, start=900)]))
    with pytest.raises(CorruptData, match=reason) as caught:
        ingest(TarFiles(tmp_path), url)
    assert caught.value.key == "x.tar: c"
    report = ingest(TarFiles(tmp_path), url, on_error="skip")
    assert [problem.name for problem in report.skipped] == ["x.tar: c"]
    assert len(samples_of(url)) == 201


def test_appending_the_same_files_adds_nothing(tmp_path: Path, url: str) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of(texts(3)))
    assert [ingest(TarFiles(tmp_path), url, append=True).num_samples for _ in range(2)] == [3, 0]
    (tmp_path / "y.tar").write_bytes(tar_of(texts(3, start=3)))
    assert ingest(TarFiles(tmp_path / "y.tar"), url, append=True).manifest.num_samples == 6


class TestDamage:
    @pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst"])
    def test_a_cut_is_found_everywhere(self, suffix: str) -> None:
        plain = tar_of(texts(3), format=tarfile.PAX_FORMAT, pax_headers={"comment": "é"})
        end = len(plain.rstrip(b"\0")) // 512 * 512 + 512
        whole = zstandard.compress(plain) if suffix == "tar.zst" else plain
        if suffix in ("tar.gz", "tar.bz2", "tar.xz"):
            whole = tar_of(texts(3), f"w:{suffix[4:]}")
        last = end if suffix == "tar" else len(whole) - 30
        for length in range(0, last, 37):
            with pytest.raises(FormatError):
                list(read_members(io.BytesIO(whole[:length])))

    def test_every_changed_byte_of_a_header_is_an_error(self) -> None:
        whole = tar_of(texts(2), format=tarfile.USTAR_FORMAT)
        for at in (*range(1024, 1024 + 148), *range(1024 + 156, 1536)):  # between them is the checksum itself
            damaged = bytearray(whole)
            damaged[at] ^= 0x55
            with pytest.raises(FormatError):
                list(read_members(io.BytesIO(damaged)))

    def test_samples_before_the_damage_are_kept_on_request(self, tmp_path: Path, url: str, samples_of: Any) -> None:
        whole = tar_of(texts(300))
        (tmp_path / "a.tar").write_bytes(whole[: 250 * 1024 + 100])
        (tmp_path / "b.tar").write_bytes(tar_of(texts(2, start=500)))
        with pytest.raises(CorruptData, match="missing"):
            ingest(TarFiles(tmp_path), url)
        report = ingest(TarFiles(tmp_path), url, on_error="skip")
        assert [problem.name for problem in report.skipped] == ["a.tar"]
        assert [sample["__key__"] for sample in samples_of(url)][-2:] == ["000500", "000501"]

    @pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
    def test_a_huge_header_takes_no_memory(self, kind: bytes) -> None:
        member = tarfile.TarInfo("x")
        member.type, member.size = kind, 1 << 40
        archive = io.BytesIO(member.tobuf(tarfile.GNU_FORMAT) + bytes(64 << 20))
        tracemalloc.start()
        try:
            with pytest.raises(FormatError, match="too large"):
                list(read_members(archive))
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()

    def test_a_huge_member_is_refused(self) -> None:
        member = tarfile.TarInfo("x.bin")
        member.size = 1 << 62
        with pytest.raises(FormatError, match="too large"):
            list(read_members(io.BytesIO(member.tobuf(tarfile.GNU_FORMAT))))

    def test_a_bomb_is_stopped_by_the_limit_of_a_member(self) -> None:
        member = tarfile.TarInfo("x.bin")
        member.size = 3 << 30
        bomb = gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20))
        with pytest.raises(FormatError, match="too large"):
            list(read_members(io.BytesIO(bomb)))


def test_sources_that_are_none(tmp_path: Path, url: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(NotFound, match=r"none of 1 files is a tar file.*\.txt"):
        ingest(TarFiles(tmp_path), url)
    with pytest.raises(NotFound, match="no such file"):
        TarFiles(tmp_path / "none.tar")
    (tmp_path / "empty.tar").write_bytes(tar_of([]))
    with pytest.raises(NotFound, match="no samples"):
        ingest(TarFiles(tmp_path), url)
    (tmp_path / "empty.tar").write_bytes(tar_of(texts(2)))
    with pytest.raises(ConfigurationError, match="no such field"):
        ingest(TarFiles(tmp_path, columns={"jpg": "jpeg"}), url)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_joined_archives_are_not_read_as_their_first_one(compress: Any) -> None:
    one, other = tar_of(texts(2)), tar_of(texts(2, start=2))
    assert len(list(read_members(io.BytesIO(compress(one) + compress(bytes(50_000)))))) == 2
    found = []
    with pytest.raises(FormatError, match="data follow the end"):
        for member in read_members(io.BytesIO(compress(one) + compress(other))):
            found.append(member)
    assert len(found) == 2
