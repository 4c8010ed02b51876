"""Writes `tfrecord/` with TensorFlow 2.21.0 (Python 3.11), and what its own reader returns.

Run it in an environment of its own: ``python make_tfrecord.py``. Nothing in the test suite imports TensorFlow.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from expected import to_json  # noqa: E402

OUT = HERE / "tfrecord"
RNG = np.random.default_rng(22)


def integers(*values: int) -> tf.train.Feature:
    """Returns a list of integers."""
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(*values: float) -> tf.train.Feature:
    """Returns a list of floats."""
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def data(*values: bytes) -> tf.train.Feature:
    """Returns a list of byte strings."""
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def sample(i: int) -> dict[str, tf.train.Feature]:
    """Returns features of all kinds and counts."""
    pixels = RNG.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    array = RNG.random(3 + i)
    return {
        "image/encoded": data(tf.io.encode_jpeg(pixels, quality=50).numpy()),
        "image/png": data(tf.io.encode_png(pixels).numpy()),
        "image/format": data(b"JPEG"),
        "image/class/label": integers([-(2**63), 2**63 - 1, 1000][i % 3]),
        "image/class/text": data("grün".encode() * (i % 3)),
        "box": floats(*RNG.random(4)),
        "boxes": floats(*RNG.random(4 * i)),
        "ids": integers(*RNG.integers(-(2**62), 2**62, i)),
        "tokens": integers(*RNG.integers(0, 50_000, 300)),
        "names": data(*[f"ü{k}".encode() for k in range(i)]),
        "frames": data(*[bytes([255, k]) for k in range(i)]),
        "raw": data(array.astype("<f8").tobytes()),
        "mask": data(np.zeros(5 + i, np.uint8).tobytes()),
        "score": floats([float("nan"), -float("inf"), 0.1][i % 3]),
        "flag": integers(i % 2),
        "pair": integers(i, -i),
        "embedding": floats(*RNG.random(300)),
        "never": tf.train.Feature(),
        **({"sometimes": data(b"\xff\x00")} if i % 2 else {}),
        **({"rare": floats(1.0)} if i == 2 else {}),
        **({"late": floats(1.0)} if i == 3 else {}),
    }


def write(name: str, records: list[bytes], options: tf.io.TFRecordOptions | None = None) -> Path:
    """Writes a file of records."""
    path = OUT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """Returns all features as TensorFlow parses them: lists of values by kind."""
    samples = []
    for record in tf.data.TFRecordDataset(str(path)):
        example = tf.train.Example.FromString(record.numpy())
        features = {}
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            values = [] if kind is None else list(getattr(feature, kind).value)
            dtype = {"float_list": np.float32, "int64_list": np.int64}.get(kind)
            features[name] = values if dtype is None else np.array(values, dtype)
        samples.append(features)
    return samples


def example(features: dict[str, tf.train.Feature]) -> bytes:
    """Returns a serialized example."""
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def main() -> None:
    """Writes all cases."""
    shutil.rmtree(OUT, ignore_errors=True)
    paths = [
        write("all/train-00000-of-00002", [example(sample(i)) for i in range(3)]),
        write("all/train-00001-of-00002", [example(sample(i)) for i in range(3, 5)]),
    ]
    (OUT / "all" / "expected.json").write_text(json.dumps(to_json([s for path in paths for s in read(path)])))
    (OUT / "all" / "train-00000-of-00002.index").write_text("0 100\n")
    sequence = tf.train.SequenceExample(
        context=tf.train.Features(feature={"a": integers(1)}),
        feature_lists=tf.train.FeatureLists(feature_list={"b": tf.train.FeatureList(feature=[integers(1)])}),
    )
    write("sequence/a.tfrecord", [sequence.SerializeToString()])
    few = [example({"a": integers(1)})]
    for compression in ("GZIP", "ZLIB"):
        write(f"{compression.lower()}/a.tfrecord", few, tf.io.TFRecordOptions(compression_type=compression))


main()
