from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any
from uuid import uuid4

import h5py
import numpy as np
import pytest

from concurrent_loader.storage.errors import ConfigurationError, CorruptData, FormatError, NotFound
from concurrent_loader.storage.importers import HDF5Files
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.stores import open_store

pytestmark = pytest.mark.usefixtures("no_leaks")

ROWS = 30


def fill(file: h5py.File, encoded: Any, start: int = 0) -> dict[str, tuple[str, list[Any]]]:
    """Writes a dataset of each kind; returns types and values as they are expected."""
    rows = range(start, start + ROWS)
    rng = np.random.default_rng(start)
    pixels = rng.integers(0, 256, (ROWS, 4, 5, 3), dtype=np.uint8)
    floats = rng.normal(size=(ROWS, 3)).astype(">f4")
    file.create_dataset("train/pixels", data=pixels, chunks=(7, 4, 5, 3), compression="gzip", shuffle=True)
    file.create_dataset("train/floats", data=floats, fletcher32=True)
    file["train/label"] = np.array(rows, np.int16)
    file["train/flag"] = np.array([row % 3 == 0 for row in rows])
    file["train/text"] = [f"é{row}" for row in rows]
    file["train/fixed"] = np.array([b"ab%d" % row for row in rows], "S6")
    file["train/names"] = np.array([[b"x", b"%d" % row] for row in rows], "S4")
    jpegs = [encoded(row) for row in rows]
    image = file.create_dataset("train/image", ROWS, h5py.vlen_dtype(np.uint8))
    ragged = file.create_dataset("train/deep/ragged", ROWS, h5py.vlen_dtype(np.int32))
    for at, row in enumerate(rows):
        image[at] = np.frombuffer(jpegs[at], np.uint8)
        ragged[at] = np.arange(row % 4, dtype=np.int32)
    record = np.zeros(ROWS, [("a", "i4"), ("b", "f8", (2,))])
    record["a"] = rows
    file["train/record"] = record
    file["train/scalar"] = 7
    return {
        "pixels": ("uint8[4,5,3]", pixels.tolist()),
        "floats": ("float32[3]", floats.tolist()),
        "label": ("int16", list(rows)),
        "flag": ("bool", [row % 3 == 0 for row in rows]),
        "text": ("str", [f"é{row}" for row in rows]),
        "fixed": ("str", [f"ab{row}" for row in rows]),
        "names": ("json", [["x", str(row)] for row in rows]),
        "image": ("jpeg", jpegs),
        "deep.ragged": ("int32[...]", [list(range(row % 4)) for row in rows]),
        "record": ("json", [{"a": row, "b": [0.0, 0.0]} for row in rows]),
    }


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("is_remote", [False, True])
def test_every_type_arrives(tmp_path: Path, url: str, encoded: Any, samples_of: Any, is_remote: bool) -> None:
    expected: dict[str, tuple[str, list[Any]]] = {}
    source = f"memory://hdf5-{uuid4()}"
    for number, name in enumerate("ab"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for column, (type_, values) in fill(file, encoded, ROWS * number).items():
                expected[column] = (type_, expected.get(column, (type_, []))[1] + values)
        asyncio.run(open_store(source).put(f"{name}.h5", (tmp_path / f"{name}.h5").read_bytes()))
    report = ingest(HDF5Files(source if is_remote else tmp_path, group="/train"), url)
    assert report.manifest.schema == {name: expected[name][0] for name in report.manifest.schema}
    assert set(report.manifest.schema) == set(expected)
    samples = samples_of(url)
    for name, (_, values) in expected.items():
        assert [plain(sample[name]) for sample in samples] == values, name


def test_types_of_the_user(tmp_path: Path, url: str, samples_of: Any) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["n"] = ["1", "2"]
        file["raw"] = np.arange(6, dtype=np.uint8).reshape(2, 3)
    importer = HDF5Files(tmp_path, columns={"n": "int64", "raw": "bytes"})
    assert ingest(importer, url).manifest.schema == {"n": "int64", "raw": "bytes"}
    assert samples_of(url) == [{"n": 1, "raw": b"\0\1\2"}, {"n": 2, "raw": b"\3\4\5"}]
    assert [ingest(HDF5Files(tmp_path, columns={"n": "int64", "raw": "bytes"}), url, append=True).num_samples] == [0]


def test_datasets_of_other_lengths(tmp_path: Path, url: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["y"] = [1, 2], [1, 2, 3]
    with pytest.raises(ConfigurationError, match=r"different lengths.*--drop"):
        ingest(HDF5Files(tmp_path), url)
    assert ingest(HDF5Files(tmp_path, drop=["y"]), url).manifest.schema == {"x": "int64"}
    with pytest.raises(NotFound, match="no such group"):
        ingest(HDF5Files(tmp_path, group="none"), url, overwrite=True)


def test_links_to_other_files_are_not_followed(tmp_path: Path, url: str, samples_of: Any) -> None:
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["x"] = [5, 6]
    raw = tmp_path / "raw.bin"
    raw.write_bytes(bytes(16))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = [1, 2]
        file["external"] = h5py.ExternalLink(str(tmp_path / "secret.hdf5"), "/x")
        file["group"] = h5py.ExternalLink(str(tmp_path / "secret.hdf5"), "/")
        file["cycle"] = h5py.SoftLink("/")
        file["hard"] = file["/"]
    ingest(HDF5Files(tmp_path / "x.h5"), url)
    assert samples_of(url) == [{"x": 1}, {"x": 2}]
    with pytest.raises(NotFound, match="no such group"):
        ingest(HDF5Files(tmp_path / "x.h5", group="group"), url, overwrite=True)
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file.create_dataset("stored", 2, "i8", external=[(str(raw), 0, 16)])
    with pytest.raises(ConfigurationError, match="other files"):
        ingest(HDF5Files(tmp_path / "x.h5"), url, overwrite=True)
    with h5py.File(tmp_path / "y.h5", "w") as file:
        layout = h5py.VirtualLayout(2, "i8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.hdf5"), "x", 2)
        file.create_virtual_dataset("virtual", layout)
    with pytest.raises(ConfigurationError, match="other files"):
        ingest(HDF5Files(tmp_path / "y.h5"), url, overwrite=True)


def test_unsupported_and_huge_datasets(tmp_path: Path, url: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = [1j, 2j]
    with pytest.raises(ConfigurationError, match="no column has"):
        ingest(HDF5Files(tmp_path), url)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (2, 1 << 40), "u1", chunks=(1, 1 << 20))
    with pytest.raises(FormatError, match="too large"):
        ingest(HDF5Files(tmp_path), url)


def test_damage(tmp_path: Path, url: str) -> None:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("x", data=np.arange(4000).reshape(40, 100), chunks=(10, 100), fletcher32=True)
    whole = bytearray(buffer.getvalue())
    for length in (0, 50, 1000, len(whole) // 2, len(whole) - 1):
        (tmp_path / "x.h5").write_bytes(whole[:length])
        with pytest.raises((FormatError, CorruptData)):
            ingest(HDF5Files(tmp_path), url)
    at = whole.index(np.arange(1500, 1600).tobytes())
    whole[at] ^= 1
    (tmp_path / "x.h5").write_bytes(whole)
    with pytest.raises(CorruptData, match="cannot be read"):
        ingest(HDF5Files(tmp_path), url)
    report = ingest(HDF5Files(tmp_path), url, on_error="skip")
    assert [problem.name for problem in report.skipped] == [f"x.h5: row {row}" for row in range(10, 20)]
