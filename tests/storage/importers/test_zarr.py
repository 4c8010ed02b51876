from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import zarr

from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound
from concurrent_loader.storage.importers import ZarrGroup
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.stores import open_store

# Zarr keeps threads of its own, so that these tests do not ask for `no_leaks`.

ROWS = 25


def write(path: Path, zarr_format: int) -> dict[str, tuple[str, list[Any]]]:
    """Writes an array of each kind; returns types and values as they are expected."""
    rng = np.random.default_rng(0)
    arrays: dict[str, tuple[str, Any]] = {
        "pixels": ("uint8[4,5,3]", rng.integers(0, 256, (ROWS, 4, 5, 3), dtype=np.uint8)),
        "floats": ("float32[3]", rng.normal(size=(ROWS, 3)).astype(">f4")),
        "label": ("int16", np.arange(ROWS, dtype=np.int16)),
        "flag": ("bool", np.arange(ROWS) % 3 == 0),
    }
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)  # type: ignore[arg-type]
    for name, (_, values) in arrays.items():
        chunks = (7, *(max(1, dim // 2) for dim in values.shape[1:]))
        array = group.create_array(name, shape=values.shape, chunks=chunks, dtype=values.dtype)
        array[:] = values
    group.create_array("scalar", shape=(), dtype="int64")
    texts = [f"é{row}" for row in range(ROWS)]
    array = group.create_array("text", shape=(ROWS,), chunks=(4,), dtype=str)
    array[:] = np.array(texts, dtype=object)
    return {**{name: (type_, values.tolist()) for name, (type_, values) in arrays.items()}, "text": ("str", texts)}


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.slow
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("is_remote", [False, True])
def test_every_type_arrives(tmp_path: Path, url: str, samples_of: Any, zarr_format: int, is_remote: bool) -> None:
    expected = write(tmp_path / "x.zarr", zarr_format)
    source = f"memory://zarr-{uuid4()}"

    async def fill() -> None:
        async with open_store(source) as store:
            for path in (tmp_path / "x.zarr").rglob("*"):
                if path.is_file():
                    await store.put(path.relative_to(tmp_path).as_posix(), path.read_bytes())

    asyncio.run(fill())
    where = (source, "x.zarr") if is_remote else (tmp_path / "x.zarr", "")
    report = ingest(ZarrGroup(where[0], group=where[1]), url, append=True)
    assert report.manifest.schema == {name: expected[name][0] for name in sorted(expected)}
    samples = samples_of(url)
    for name, (_, values) in expected.items():
        assert [plain(sample[name]) for sample in samples] == values, name
    assert ingest(ZarrGroup(where[0], group=where[1]), url, append=True).repeats


def test_shards(tmp_path: Path, url: str, samples_of: Any) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    array = group.create_array("x", shape=(20, 3), chunks=(2, 3), shards=(10, 3), dtype="int32")
    array[:] = np.arange(60).reshape(20, 3)
    ingest(ZarrGroup(tmp_path / "x.zarr"), url)
    assert [sample["x"].tolist() for sample in samples_of(url)] == np.arange(60).reshape(20, 3).tolist()


def test_pickles_are_refused_and_never_loaded(tmp_path: Path, url: str) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.write_text, (tmp_path / "trapped", "x")

    zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    array = {
        "zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|O", "fill_value": None, "order": "C",
        "compressor": None, "filters": [{"id": "pickle", "protocol": 5}],
    }  # fmt: skip
    (tmp_path / "x.zarr" / "bad").mkdir()
    (tmp_path / "x.zarr" / "bad" / ".zarray").write_text(json.dumps(array))
    (tmp_path / "x.zarr" / "bad" / "0").write_bytes(pickle.dumps(np.array([Trap()], dtype=object)))
    with pytest.raises((ConfigurationError, FormatError)):
        ingest(ZarrGroup(tmp_path / "x.zarr"), url)
    assert not (tmp_path / "trapped").exists()


def test_arrays_of_other_lengths(tmp_path: Path, url: str) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    for name, length in (("x", 2), ("y", 3)):
        group.create_array(name, shape=(length,), dtype="int64")[:] = np.arange(length)
    with pytest.raises(ConfigurationError, match="different lengths"):
        ingest(ZarrGroup(tmp_path / "x.zarr"), url)
    assert ingest(ZarrGroup(tmp_path / "x.zarr", drop=["y"]), url).num_samples == 2
    with pytest.raises(NotFound):
        ingest(ZarrGroup(tmp_path / "x.zarr", group="none"), url, overwrite=True)


@pytest.mark.slow
def test_damage(tmp_path: Path, url: str) -> None:
    folder = tmp_path / "x.zarr"
    write(folder, 3)
    (chunk,) = [path for path in (folder / "pixels").rglob("*") if path.parts[-4:] == ("0", "0", "0", "0")] or [
        next(path for path in sorted((folder / "pixels" / "c").rglob("*")) if path.is_file())
    ]
    whole = chunk.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"x" * len(whole)):
        chunk.write_bytes(damaged)
        with pytest.raises(FormatError, match="cannot be read from row 0"):
            ingest(ZarrGroup(folder), url)
    chunk.write_bytes(whole)
    (folder / "label" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    with pytest.raises(FormatError):
        ingest(ZarrGroup(folder), url)


def test_huge_chunks_are_refused(tmp_path: Path, url: str) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("x", shape=(4, 1 << 34), chunks=(1, 1 << 34), dtype="uint8")
    with pytest.raises(FormatError, match="too large"):
        ingest(ZarrGroup(tmp_path / "x.zarr"), url)
