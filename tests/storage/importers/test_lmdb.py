from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lmdb
import pytest

from concurrent_loader.storage.errors import ConfigurationError, CorruptData, FormatError, NotFound
from concurrent_loader.storage.importers import LMDBDatabase
from concurrent_loader.storage.importers.ingest import ingest

pytestmark = pytest.mark.usefixtures("no_leaks")


def write(path: Path, items: Mapping[bytes, bytes], *, database: bytes | None = None, subdir: bool = True) -> None:
    with lmdb.open(str(path), map_size=64 << 20, max_dbs=4, subdir=subdir) as environment:
        opened = environment.open_db(database)
        with environment.begin(write=True, db=opened) as transaction:
            for key, value in items.items():
                assert transaction.put(key, value)


def items(number: int, encoded: Any) -> dict[bytes, bytes]:
    return {b"%06d" % at: encoded(at) for at in range(number)}


@pytest.mark.parametrize("subdir", [True, False])
def test_everything_arrives(tmp_path: Path, url: str, encoded: Any, samples_of: Any, subdir: bool) -> None:
    written = items(300, encoded)
    write(tmp_path / "db", {**written, b"__len__": b"300", b"__keys__": pickle.dumps([1])}, subdir=subdir)
    report = ingest(LMDBDatabase(tmp_path / "db"), url, append=True)
    assert report.manifest.schema == {"__key__": "str", "value": "jpeg"}
    assert [(sample["__key__"].encode(), sample["value"]) for sample in samples_of(url)] == list(written.items())
    assert ingest(LMDBDatabase(tmp_path / "db"), url, append=True).repeats


def test_types_of_the_user_and_named_databases(tmp_path: Path, url: str, samples_of: Any) -> None:
    write(tmp_path / "db", {b"\xff%d" % at: b"[%d]" % at for at in range(3)}, database=b"train")
    report = ingest(LMDBDatabase(tmp_path / "db", database="train", columns={"value": "json"}), url)
    assert report.manifest.schema == {"__key__": "bytes", "value": "json"}
    assert samples_of(url) == [{"__key__": b"\xff%d" % at, "value": [at]} for at in range(3)]
    with pytest.raises(NotFound, match="no such database"):
        ingest(LMDBDatabase(tmp_path / "db", database="none"), url, overwrite=True)


def test_pickles_are_refused_and_never_loaded(tmp_path: Path, url: str, samples_of: Any) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.write_text, (tmp_path / "trapped", "x")

    value = pickle.dumps(Trap())
    write(tmp_path / "db", {b"a": value})
    with pytest.raises(ConfigurationError, match="--column value=bytes"):
        ingest(LMDBDatabase(tmp_path / "db"), url)
    ingest(LMDBDatabase(tmp_path / "db", columns={"value": "bytes"}), url)
    assert samples_of(url) == [{"__key__": "a", "value": value}]
    assert not (tmp_path / "trapped").exists()


def test_a_bad_value_is_named(tmp_path: Path, url: str, encoded: Any) -> None:
    write(tmp_path / "db", {**items(250, encoded), b"x": b"no image"})
    with pytest.raises(CorruptData, match="--column value=TYPE") as caught:
        ingest(LMDBDatabase(tmp_path / "db"), url)
    assert caught.value.key == "key b'x'"
    assert ingest(LMDBDatabase(tmp_path / "db"), url, on_error="skip").num_samples == 250
    with pytest.raises(CorruptData, match="value is not int64"):
        ingest(LMDBDatabase(tmp_path / "db", columns={"value": "int64"}), url, overwrite=True)


def test_damaged_databases(tmp_path: Path, url: str, encoded: Any) -> None:
    write(tmp_path / "db", items(300, encoded))
    path = tmp_path / "db" / "data.mdb"
    whole = path.read_bytes()
    for length in (0, 100, 5000, 8192, len(whole) // 2, len(whole) - 4096):
        path.write_bytes(whole[:length])
        with pytest.raises((FormatError, CorruptData)):
            ingest(LMDBDatabase(tmp_path / "db"), url)
    path.write_bytes(b"no database" * 2000)
    with pytest.raises(FormatError, match="cannot be read"):
        ingest(LMDBDatabase(tmp_path / "db"), url)


def test_sources_that_are_none(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match="local drive"):
        LMDBDatabase("s3://bucket/db")
    with pytest.raises(NotFound, match=r"data\.mdb"):
        LMDBDatabase(tmp_path)
    write(tmp_path / "db", {})
    with pytest.raises(NotFound, match="empty"):
        ingest(LMDBDatabase(tmp_path / "db"), url)
