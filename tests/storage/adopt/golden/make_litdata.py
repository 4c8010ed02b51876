"""Writes `litdata/` with litdata 0.2.76 (Python 3.11), and what its own reader returns.

Run it in an environment of its own: ``python make_litdata.py``. Nothing in the test suite imports litdata.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from litdata import StreamingDataset
from litdata.streaming.item_loader import PyTreeLoader, TokensLoader
from litdata.streaming.writer import BinaryWriter
from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from expected import to_json  # noqa: E402

OUT = HERE / "litdata"
RNG = np.random.default_rng(22)
os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"


def pixels(*shape: int) -> np.ndarray[Any, Any]:
    """Returns noise."""
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def jpeg_image() -> Image.Image:
    """Returns an image that was read from a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(pixels(4, 5, 3)).save(file, "JPEG", quality=50)
    return Image.open(io.BytesIO(file.getvalue()))


def sample(i: int, folder: str) -> dict[str, Any]:
    """Returns an item with all serializers that do not pickle."""
    tiff = Path(folder) / f"{i}.tiff"
    tifffile.imwrite(tiff, pixels(3, 4))
    return {
        "bool": i % 2 == 0,
        "bytes": bytes(range(i)),
        "float": [0.1, -1e300, float("inf")][i % 3],
        "int": -(2**40) * i,
        "jpeg": jpeg_image(),
        "jpeg_array": [jpeg_image() for _ in range(1 + i % 2)],
        "json": [{"nested": {"a": [1, 2, i], "b": None}, "texts": ["x", "ü"], "floats": [0.5]}, "mixed", 7],
        "records": [{"k": i, "t": "ü", "f": 1.5, "n": None, "b": True}] * (1 + i),
        "no_header_numpy": np.arange(i, dtype=np.uint16),
        "no_header_tensor": torch.arange(i, dtype=torch.int32),
        "numpy": RNG.random((2, 1 + i)),
        "numpy_constant": RNG.random((2, 3)).astype(np.float32),
        "pil": Image.fromarray(pixels(4, 5 + i % 2)),
        "scalar_tensor": torch.tensor(i / 3),
        "str": "grün" * (i % 3),
        "tensor": torch.from_numpy(pixels(2, 200 + i, 3)),
        "tensor_bool": torch.tensor([[True, False], [i % 2 == 0, True]]),
        "tiff": str(tiff),
        "tuple": (i, [f"a{i}", 0.5 * i]),
    }


def write(name: str, items: list[Any], **options: Any) -> Path:
    """Writes a dataset in chunks of two items."""
    folder = OUT / name
    writer = BinaryWriter(str(folder), **{"chunk_size": 2, **options})
    for index, item in enumerate(items):
        writer[index] = item
    writer.done()
    writer.merge()
    return folder


def read(folder: Path, loader: Any = None) -> list[Any]:
    """Returns all samples, read by the peer's reader from a copy, because it deletes what it has read."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        dataset = StreamingDataset(copy, item_loader=loader or PyTreeLoader(), shuffle=False)
        return [dataset[i] for i in range(len(dataset))]


def main() -> None:
    """Writes all cases."""
    shutil.rmtree(OUT, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        expect(write("all", [sample(i, folder) for i in range(3)]))
    few = [{"x": torch.arange(i + 1.0), "label": i, "data": bytes(30)} for i in range(5)]
    expect(write("chunk", few, compression="zstd", compression_level="chunk"))
    expect(write("batch", few, compression="zstd", chunk_size=4, compression_batch_size=3))
    expect(write("sample", few, compression="zstd:7", compression_level="sample"))
    expect(write("leaf", [b"one", b"two", b"three"]))
    documents = [torch.arange(10 * i, 10 * i + n, dtype=torch.int32) for i, n in enumerate([5, 3, 8, 1])]
    tokens = write("tokens", documents, chunk_size=9, item_loader=TokensLoader())
    expect(tokens, TokensLoader(block_size=4))
    write("pickled", [{"x": {1, 2}}])
    write("arrow", [{"text": "one"}, {"text": "two"}])


def expect(folder: Path, loader: Any = None) -> None:
    """Writes what the peer's reader returns."""
    (folder / "expected.json").write_text(json.dumps(to_json(read(folder, loader))))


main()
