from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgpack
import numpy as np
import pytest

from concurrent_loader.storage.errors import ConfigurationError, CorruptData, FormatError, SchemaError
from concurrent_loader.storage.importers import DatadingsFiles
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.stores import open_store

pytestmark = pytest.mark.usefixtures("no_leaks")

GOLDEN = Path(__file__).parent / "golden"


def golden_samples() -> list[dict[str, Any]]:
    spec = importlib.util.spec_from_file_location("make_datadings", GOLDEN / "make_datadings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.samples()  # type: ignore[no-any-return]


def copy(folder: Path) -> Path:
    for path in GOLDEN.glob("samples.msgpack*"):
        shutil.copy(path, folder)
    return folder / "samples.msgpack"


def write(folder: Path, records: list[bytes], keys: list[str] | None = None) -> Path:
    path = folder / "x.msgpack"
    path.write_bytes(b"".join(records))
    offsets = np.cumsum([0, *map(len, records)]).astype(">u8")
    Path(f"{path}.offsets").write_bytes(offsets.tobytes())
    if keys is not None:
        Path(f"{path}.keys").write_bytes(msgpack.packb(keys))
    return path


@pytest.mark.parametrize("is_remote", [False, True])
def test_what_datadings_wrote_arrives(url: str, samples_of: Any, is_remote: bool) -> None:
    source = f"memory://datadings-{uuid4()}"
    for path in GOLDEN.glob("samples.msgpack*"):
        asyncio.run(open_store(source).put(path.name, path.read_bytes()))
    report = ingest(DatadingsFiles(source if is_remote else GOLDEN / "samples.msgpack"), url)
    assert report.manifest.schema == {
        "key": "str", "image": "jpeg", "label": "int64", "weight": "float64", "boxes": "float32[...]",
        "size": "int64[2]", "scalar": "float32", "meta": "json",
    }  # fmt: skip
    for ours, theirs in zip(samples_of(url), golden_samples(), strict=True):
        for name in ("boxes", "size"):
            assert (ours[name].dtype, ours[name].tolist()) == (theirs[name].dtype, theirs.pop(name).tolist())
            del ours[name]
        assert ours == theirs


def test_appending_the_same_files_adds_nothing(tmp_path: Path, url: str) -> None:
    path = copy(tmp_path)
    assert [ingest(DatadingsFiles(path), url, append=True).num_samples for _ in range(2)] == [12, 0]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".offsets", ".keys"])
def test_every_changed_byte_is_an_error(tmp_path: Path, url: str, suffix: str) -> None:
    path = Path(f"{copy(tmp_path)}{suffix}")
    whole = path.read_bytes()
    for at in range(0, len(whole), 37):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with pytest.raises((FormatError, CorruptData, SchemaError)):
            ingest(DatadingsFiles(tmp_path), url)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".offsets", ".keys"])
def test_every_cut_is_an_error_without_digests(tmp_path: Path, url: str, suffix: str) -> None:
    path = Path(f"{copy(tmp_path)}{suffix}")
    (tmp_path / "samples.msgpack.md5").unlink()
    whole = path.read_bytes()
    for length in range(0, len(whole), 31):
        path.write_bytes(whole[:length])
        with pytest.raises((FormatError, CorruptData)):
            ingest(DatadingsFiles(tmp_path), url)


@pytest.mark.parametrize(
    "offsets", [[0], [0, 5], [0, 1 << 63, 26], [0, 20, 10, 26], [3, 13, 26], [0, 13, 1 << 40], [(1 << 64) - 1, 13, 26]]
)
def test_lying_offsets(tmp_path: Path, url: str, offsets: list[int]) -> None:
    records = [msgpack.packb({"key": key, "n": 1}) for key in ("abc", "def")]
    path = write(tmp_path, records)
    Path(f"{path}.offsets").write_bytes(np.array(offsets, np.uint64).astype(">u8").tobytes())
    with pytest.raises(FormatError, match="offsets"):
        ingest(DatadingsFiles(path), url)


def test_keys_must_fit(tmp_path: Path, url: str) -> None:
    records = [msgpack.packb({"key": key}) for key in "ab"]
    with pytest.raises(FormatError, match="one text per record"):
        ingest(DatadingsFiles(write(tmp_path, records, ["a"])), url)
    with pytest.raises(FormatError, match="same key"):
        ingest(DatadingsFiles(write(tmp_path, records, ["a", "a"])), url)
    with pytest.raises(CorruptData, match="the index 'x'"):
        ingest(DatadingsFiles(write(tmp_path, records, ["a", "x"])), url)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": b"\x80\x04N."}, "Python objects"),
        ({b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [1 << 40], b"data": b"1234"}, "reshape"),
        ({b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [1], b"data": b"123"}, "multiple"),
        ({b"nd": True, b"type": "nonsense", b"kind": b"", b"shape": [1], b"data": b"123"}, "not msgpack"),
        ({b"nd": True, b"kind": b""}, "Python objects"),
    ],
)
def test_hostile_arrays(tmp_path: Path, url: str, field: Any, reason: str) -> None:
    records = [msgpack.packb({"x": 1})] * 200 + [msgpack.packb({"x": field})]
    path = write(tmp_path, records)
    with pytest.raises(CorruptData, match=reason) as caught:
        ingest(DatadingsFiles(path), url)
    assert caught.value.key == "x.msgpack: record 200"
    assert ingest(DatadingsFiles(path), url, on_error="skip").num_samples == 200


@pytest.mark.parametrize(
    "record", [b"\xc1", b"\x91" * 5000, msgpack.packb([1]), msgpack.packb({1: 2}), b"\xdf\xff\xff\xff\xff"]
)
def test_hostile_records(tmp_path: Path, url: str, record: bytes) -> None:
    with pytest.raises(CorruptData):
        ingest(DatadingsFiles(write(tmp_path, [msgpack.packb({"x": 1})] * 200 + [record])), url)


def test_files_without_offsets(tmp_path: Path, url: str) -> None:
    (tmp_path / "x.msgpack").write_bytes(msgpack.packb({"x": 1}))
    with pytest.raises(ConfigurationError, match="offsets"):
        ingest(DatadingsFiles(tmp_path), url)


def test_data_that_differ_from_their_digest(tmp_path: Path, url: str) -> None:
    path = write(tmp_path, [msgpack.packb({"x": 1})])
    Path(f"{path}.md5").write_text(f"{hashlib.md5(b'').hexdigest()}  x.msgpack\n")
    with pytest.raises(CorruptData, match="MD5"):
        ingest(DatadingsFiles(path), url)
