"""Writes `mds/` with mosaicml-streaming 0.13.0 (Python 3.11), and what its own reader returns.

Run it in an environment of its own: ``python make_mds.py``. Nothing in the test suite imports mosaicml-streaming.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from streaming import MDSWriter
from streaming.base.compression import decompress
from streaming.base.format import reader_from_json
from streaming.base.util import merge_index

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from expected import to_json  # noqa: E402

OUT = HERE / "mds"
RNG = np.random.default_rng(22)

NUMBERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
COLUMNS = {
    "bytes": "bytes",
    "str": "str",
    "int": "int",
    **{name: name for name in NUMBERS},
    "nd_dynamic": "ndarray",
    "nd_constant": "ndarray",
    "nd_dtype": "ndarray:int16",
    "nd_fixed": "ndarray:float32:2,3",
    "nd_large": "ndarray:uint8:20,60",
    "str_int": "str_int",
    "str_int_huge": "str_int",
    "str_float": "str_float",
    "str_decimal": "str_decimal",
    "pil": "pil",
    "pil_float": "pil",
    "jpeg": "jpeg",
    "png": "png",
    "jpeg_array": "jpeg_array",
    "list_pil": "list[pil]",
    "list_jpeg": "list[jpeg]",
    "list_png": "list[png]",
    "json": "json",
}
MODES = ["RGB", "L", "RGBA", "1", "CMYK", "LA"]


def image(mode: str = "RGB", size: tuple[int, int] = (5, 4)) -> Image.Image:
    """Returns an image of noise."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    if mode == "F":
        return Image.fromarray(RNG.random(size[::-1], dtype=np.float32))
    if mode == "1":
        return Image.fromarray(RNG.integers(0, 2, size[::-1], dtype=np.uint8) * 255).convert("1")
    pixels = RNG.integers(0, 256, (size[1], size[0], bands), dtype=np.uint8)
    return Image.frombytes(mode, size, pixels.tobytes())


def jpeg() -> bytes:
    """Returns a JPEG file."""
    file = io.BytesIO()
    image().save(file, "JPEG", quality=50)
    return file.getvalue()


def sample(i: int) -> dict[str, Any]:
    """Returns a sample with all encodings."""
    numbers = {}
    for name in NUMBERS:
        info = np.finfo(name) if name.startswith("float") else np.iinfo(name)
        numbers[name] = np.dtype(name).type([info.min, info.max, 1][i % 3])
    return {
        "bytes": bytes(range(i)),
        "str": "grün" * (i % 3),
        "int": -(2**40) * i,
        **numbers,
        "nd_dynamic": RNG.integers(-100, 100, [(3,), (2, 300), (1, 1, 4)][i % 3]).astype("int64"),
        "nd_constant": RNG.random(4),
        "nd_dtype": RNG.integers(-100, 100, (1 + i % 3, 2)).astype("int16"),
        "nd_fixed": RNG.random((2, 3), dtype=np.float32),
        "nd_large": RNG.integers(0, 256, (20, 60), dtype=np.uint8),
        "str_int": -7 * i,
        "str_int_huge": 10**30 + i,
        "str_float": [0.1, -1e300, float("inf")][i % 3],
        "str_decimal": Decimal("3.14159265358979323846264338327950288") * i,
        "pil": image(["RGB", "L", "RGBA"][i % 3], (5 + i % 2, 4)),
        "pil_float": image("F", (3, 2)),
        "jpeg": image(),
        "png": image("LA"),
        "jpeg_array": [jpeg() for _ in range(1 + i % 2)],
        "list_pil": [image("L", (2, 2)) for _ in range(i % 3)],
        "list_jpeg": [image() for _ in range(i % 2)],
        "list_png": [image() for _ in range(i % 3)],
        "json": {"a": [1, None, "ü", 0.5], "i": i},
    }


def write(folder: Path, columns: dict[str, str], samples: list[dict[str, Any]], **options: Any) -> None:
    """Writes a dataset and what its reader returns."""
    with MDSWriter(out=str(folder), columns=columns, **options) as writer:
        for values in samples:
            writer.write(values)


def read(folder: Path) -> list[dict[str, Any]]:
    """Returns all samples, read by the peer's reader."""
    samples = []
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        raw = folder / shard["raw_data"]["basename"]
        if shard["zip_data"]:
            raw.write_bytes(decompress(shard["compression"], (folder / shard["zip_data"]["basename"]).read_bytes()))
        reader = reader_from_json(str(folder), "", shard)
        samples += [reader.get_item(i) for i in range(reader.samples)]
        if shard["zip_data"]:
            raw.unlink()
    return samples


def main() -> None:
    """Writes all cases."""
    shutil.rmtree(OUT, ignore_errors=True)
    small = {"text": "str", "label": "int", "x": "ndarray"}
    few = [{"text": f"t{i}" * 9, "label": i, "x": np.arange(i + 1, dtype=np.int32)} for i in range(6)]
    write(OUT / "all", COLUMNS, [sample(i) for i in range(4)], size_limit=20_000, hashes=["sha1", "xxh64"])
    modes = [{"image": image(mode, (11, 3))} for mode in MODES[:3] + MODES[4:]]
    write(OUT / "modes", {"image": "pil"}, modes)
    write(OUT / "bits", {"image": "pil"}, [{"image": image("1", (11, 3))}, {"image": image("1", (8, 1))}])
    for compression in ("zstd", "gz", "bz2", "br", "snappy"):
        write(OUT / compression, small, few, compression=compression, size_limit=400)
    for part in ("a", "b"):
        write(OUT / "parts" / part, small, few[:3] if part == "a" else few[3:], size_limit=400)
    merge_index(str(OUT / "parts"))
    write(OUT / "pickled", {"x": "pkl"}, [{"x": 1}])
    for folder in sorted(path.parent for path in OUT.rglob("index.json")):
        if folder.name not in ("pickled", "a", "b"):
            (folder / "expected.json").write_text(json.dumps(to_json(read(folder))))
    (OUT / "parts" / "index.json").rename(OUT / "parts" / "merged.json")


main()
