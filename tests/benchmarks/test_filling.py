from __future__ import annotations

from pathlib import Path

from benchmarks.bucket import put_all, write_shards
from benchmarks.photos import CLASSES, make_photos
from concurrent_loader import ShardDataset


def test_photographs_become_objects_and_shards_once(tmp_path: Path) -> None:
    photos, bucket, shards = make_photos(tmp_path, count=12), tmp_path / "bucket", str(tmp_path / "shards")
    paths = photos.paths()
    values = {f"{path.parent.name}/{path.name}": path for path in paths}
    put_all(str(bucket), {}, values)
    one = bucket / paths[0].parent.name / paths[0].name
    one.write_bytes(one.read_bytes()[:-1])  # cut short
    put_all(str(bucket), {}, values)
    assert sorted(path.read_bytes() for path in bucket.glob("*/*.jpg")) == sorted(path.read_bytes() for path in paths)
    for _ in range(2):  # again, in place of what an earlier run left
        write_shards(photos, shards)
    with ShardDataset(shards) as dataset:
        samples = [dataset[place] for place in range(len(dataset))]
    assert sorted(sample["number"] for sample in samples) == list(range(12))
    assert [sample["number"] for sample in samples] != list(range(12))
    for sample in samples:
        path = paths[sample["number"]]
        assert (bytes(sample["image"]), CLASSES[sample["label"]]) == (path.read_bytes(), path.parent.name)
