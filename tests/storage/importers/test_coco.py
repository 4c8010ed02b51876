from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from typer.testing import CliRunner

from concurrent_loader.cli.app import app
from concurrent_loader.storage.errors import ConfigurationError, CorruptData, FormatError, NotFound
from concurrent_loader.storage.importers import CocoDataset
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.importers.parts import plan_parts, write_part
from concurrent_loader.storage.importers.parts_commit import commit_parts
from concurrent_loader.storage.stores import open_store

pytestmark = pytest.mark.usefixtures("no_leaks")

NUM_IMAGES = 30


def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    """Annotations of objects and of captions, as in COCO: ids with gaps, an image without objects, an RLE."""
    rng = np.random.default_rng(0)
    images = [{"id": 100 + 7 * at, "file_name": f"{at:012}.jpg", "width": 16, "height": 12} for at in range(NUM_IMAGES)]
    notes = []
    for number in range(80):
        x, y, width, height = (round(float(value), 2) for value in rng.uniform(0, 5, 4))
        notes.append(
            {
                "id": 1000 + number, "image_id": images[number % (NUM_IMAGES - 1)]["id"],
                "category_id": int(rng.choice([1, 18, 90])), "bbox": [x, y, width, height], "area": width * height,
                "iscrowd": int(number % 9 == 0),
                "segmentation": {"size": [12, 16], "counts": [5, 187]} if number % 9 == 0 else [[x, y, x + 1, y, x, 9]],
            }
        )  # fmt: skip
    categories = [{"id": at, "name": name} for at, name in ((90, "toothbrush"), (1, "person"), (18, "dog"))]
    captions = [
        {"id": number, "image_id": image["id"], "caption": f"é {number}"} for number, image in enumerate(images * 2)
    ]
    return (
        {"info": {}, "licenses": [], "images": images, "annotations": notes, "categories": categories},
        {"images": images, "annotations": captions},
    )


def write(folder: Path, document: dict[str, Any], encoded: Any, name: str = "instances.json") -> Path:
    (folder / "images").mkdir(exist_ok=True)
    for at in range(NUM_IMAGES):
        (folder / "images" / f"{at:012}.jpg").write_bytes(encoded(at))
    (folder / name).write_text(json.dumps(document))
    return folder / name


@pytest.mark.parametrize("boxes", ["xyxy", "xywh"])
def test_everything_arrives(tmp_path: Path, url: str, encoded: Any, samples_of: Any, boxes: str) -> None:
    objects, captions = documents()
    source, texts = write(tmp_path, objects, encoded), write(tmp_path, captions, encoded, "captions.json")
    report = ingest(CocoDataset(source, images=tmp_path / "images", captions=texts, boxes=boxes), url)
    assert report.manifest.metadata["classes"] == {"labels": ["person", "dog", "toothbrush"]}
    ids = {"person": 1, "dog": 18, "toothbrush": 90}
    assert report.manifest.metadata["coco"] == {"boxes": boxes, "category_ids": ids}
    samples = samples_of(url)
    for at, (sample, image) in enumerate(zip(samples, objects["images"], strict=True)):
        notes = [note for note in objects["annotations"] if note["image_id"] == image["id"]]
        assert (sample["image"], sample["image_id"], sample["file_name"]) == (
            encoded(at), image["id"], image["file_name"],
        )  # fmt: skip
        expected = np.array([note["bbox"] for note in notes], np.float64).reshape(-1, 4)
        if boxes == "xyxy":
            expected[:, 2:] += expected[:, :2]
        assert sample["boxes"].shape == (len(notes), 4)
        assert sample["boxes"].tolist() == expected.astype(np.float32).tolist()
        assert [[1, 18, 90][label] for label in sample["labels"]] == [note["category_id"] for note in notes]
        assert sample["iscrowd"].tolist() == [note["iscrowd"] == 1 for note in notes]
        assert sample["masks"] == [note["segmentation"] for note in notes]
        assert sample["captions"] == [f"é {at}", f"é {at + NUM_IMAGES}"]
    assert samples[-1]["boxes"].shape == (0, 4)


def test_captions_alone_in_a_bucket(tmp_path: Path, url: str, encoded: Any, samples_of: Any) -> None:
    _, captions = documents()
    source = f"memory://coco-{uuid4()}"

    async def fill() -> None:
        async with open_store(source) as store:
            await store.put("notes/captions.json", json.dumps(captions).encode())
            for at in range(NUM_IMAGES):
                await store.put(f"images/{at:012}.jpg", encoded(at))

    asyncio.run(fill())
    report = ingest(CocoDataset(f"{source}/notes/captions.json", images=f"{source}/images"), url, append=True)
    assert report.manifest.schema == {"image": "jpeg", "image_id": "int64", "file_name": "str", "captions": "json"}
    assert [len(sample["captions"]) for sample in samples_of(url)] == [2] * NUM_IMAGES
    again = CocoDataset(f"{source}/notes/captions.json", images=f"{source}/images")
    assert ingest(again, url, append=True).repeats


@pytest.mark.parametrize("images_are_remote", [True, False])
def test_annotations_here_and_images_in_a_bucket_or_the_other_way_round(
    tmp_path: Path, url: str, encoded: Any, samples_of: Any, s3_bucket: Any, images_are_remote: bool
) -> None:
    objects, _ = documents()
    here = write(tmp_path, objects, encoded)

    async def fill() -> None:
        async with open_store(s3_bucket.url, **s3_bucket.storage_options) as store:
            for path in (here, *(tmp_path / "images").iterdir()):
                await store.put(str(path.relative_to(tmp_path)), path.read_bytes())

    asyncio.run(fill())
    source, images = (here, f"{s3_bucket.url}/images") if images_are_remote else (
        f"{s3_bucket.url}/instances.json", tmp_path / "images",
    )  # fmt: skip
    ingest(CocoDataset(source, images=images, storage_options=s3_bucket.storage_options), url)
    assert len(samples_of(url)) == NUM_IMAGES
    flags = [f"--storage-option={name}={value}" for name, value in s3_bucket.storage_options.items()]
    result = CliRunner().invoke(app, ["ingest", "coco", str(source), url, f"--images={images}", "--overwrite", *flags])
    assert result.exit_code == 0, result.output
    assert len(samples_of(url)) == NUM_IMAGES


def test_options_of_a_bucket_are_refused_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "i.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="no options"):
        CocoDataset(tmp_path / "i.json", images=tmp_path, storage_options={"region": "eu-west-1"})


def test_appending_keeps_class_numbers(tmp_path: Path, url: str, encoded: Any, samples_of: Any) -> None:
    objects, _ = documents()
    source = write(tmp_path, objects, encoded)
    ingest(CocoDataset(source, images=tmp_path / "images"), url)
    objects["categories"] = [{"id": 1, "name": "dog"}, {"id": 18, "name": "bird"}, {"id": 90, "name": "person"}]
    source.write_text(json.dumps(objects))
    report = ingest(CocoDataset(source, images=tmp_path / "images"), url, append=True)
    assert report.manifest.metadata["classes"]["labels"] == ["person", "dog", "toothbrush", "bird"]
    samples = samples_of(url)
    renamed = {0: 1, 1: 3, 2: 0}
    for before, after in zip(samples[:NUM_IMAGES], samples[NUM_IMAGES:], strict=True):
        assert [renamed[label] for label in before["labels"].tolist()] == after["labels"].tolist()


@pytest.mark.parametrize(
    ("damage", "name", "reason"),
    [
        (lambda d: d["images"][3].update(file_name="../../etc/passwd"), "../../etc/passwd", "missing in file:"),
        (lambda d: d["images"][3].update(id=d["images"][2]["id"]), "000000000003.jpg", "two images have the id"),
        (lambda d: d["annotations"][3].update(category_id=5), "000000000003.jpg", "unknown category 5"),
        (lambda d: d["annotations"][3].update(image_id=5), "annotation 1003", "of the image 5"),
        (lambda d: d["annotations"][32].update(id=1003), "000000000003.jpg", "same id"),
        (lambda d: d["annotations"][3].update(bbox=[0, 0, 1e300, 1]), "000000000003.jpg", "too large"),
    ],
)
def test_a_bad_sample_is_named(tmp_path: Path, url: str, encoded: Any, damage: Any, name: str, reason: str) -> None:
    objects, _ = documents()
    damage(objects)
    source = write(tmp_path, objects, encoded)
    report = ingest(CocoDataset(source, images=tmp_path / "images"), url, on_error="skip")
    assert name in [problem.name for problem in report.skipped]
    assert reason in next(problem.reason for problem in report.skipped if problem.name == name)
    with pytest.raises(CorruptData):
        ingest(CocoDataset(source, images=tmp_path / "images"), url, overwrite=True)


def test_a_damaged_image_is_named(tmp_path: Path, url: str, encoded: Any) -> None:
    source = write(tmp_path, documents()[0], encoded)
    path = tmp_path / "images" / "000000000004.jpg"
    path.write_bytes(path.read_bytes()[:200])
    report = ingest(CocoDataset(source, images=tmp_path / "images"), url, on_error="skip")
    assert [problem.name for problem in report.skipped] == ["000000000004.jpg"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not in COCO's format"),
        ("[1, 2]", "Expected `object`"),
        ('{"images": []}', "no images"),
        ('{"images": [{"id": "a", "file_name": "x"}]}', r"\$.images\[0\].id"),
        ('{"images": [{"id": 1, "file_name": "x"}], "annotations": [{"image_id": 1, "bbox": [1, 2]}]}', "bbox"),
        ('{"images": [{"id": 1, "file_name": "x"}], "annotations": [{"image_id": 1, "id": 9}]}', "panoptic"),
        ('{"images": ' + "[" * 100_000, "not in COCO's format"),
    ],
)
def test_invalid_files(tmp_path: Path, url: str, encoded: Any, text: str, reason: str) -> None:
    source = write(tmp_path, {}, encoded)
    source.write_text(text)
    with pytest.raises(FormatError, match=reason):
        ingest(CocoDataset(source, images=tmp_path / "images"), url)


def test_every_cut_is_an_error(tmp_path: Path, url: str, encoded: Any) -> None:
    source = write(tmp_path, documents()[0], encoded)
    whole = source.read_bytes()
    for length in range(1, len(whole), 997):
        source.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            ingest(CocoDataset(source, images=tmp_path / "images"), url)


def test_wrong_arguments(tmp_path: Path, url: str, encoded: Any) -> None:
    source = write(tmp_path, documents()[0], encoded)
    with pytest.raises(ConfigurationError, match="--images"):
        CocoDataset(source)
    with pytest.raises(ConfigurationError, match="xyxy"):
        CocoDataset(source, images=tmp_path, boxes="yxyx")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound):
        ingest(CocoDataset(source, images=tmp_path / "empty"), url)


def test_parts_written_in_any_order_make_the_same_dataset(
    tmp_path: Path, url: str, encoded: Any, samples_of: Any
) -> None:
    objects, captions = documents()
    texts = write(tmp_path, captions, encoded, "captions.json")
    objects["annotations"].append({**objects["annotations"][0], "id": 9, "image_id": 4})
    source = write(tmp_path, objects, encoded)
    (tmp_path / "images" / f"{3:012}.jpg").unlink()

    def dataset() -> CocoDataset:
        return CocoDataset(source, images=tmp_path / "images", captions=texts)

    whole = ingest(dataset(), url, on_error="skip")
    parts = plan_parts(dataset(), f"{url}-parts", shard_size="4KiB", on_error="skip")
    assert len(parts) > 1
    for part in reversed(parts):
        write_part(pickle.loads(pickle.dumps(part)), f"{url}-parts")
    report = commit_parts(f"{url}-parts", parts)
    assert report.skipped == whole.skipped
    assert len(report.skipped) == 2
    np.testing.assert_equal(samples_of(f"{url}-parts"), samples_of(url))


def test_boxes_of_another_form_are_not_appended(tmp_path: Path, url: str, encoded: Any) -> None:
    objects, _ = documents()
    source = write(tmp_path, objects, encoded)
    ingest(CocoDataset(source, images=tmp_path / "images"), url)
    with pytest.raises(ConfigurationError, match="boxes of another form"):
        ingest(CocoDataset(source, images=tmp_path / "images", boxes="xywh"), url, append=True, again=True)
