from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import photos as photos_module
from benchmarks.photos import CLASSES, MAX_BYTES, MIN_BYTES, make_photos, replicate_photos


@pytest.mark.slow
def test_photographs_are_jpegs_of_the_usual_size_in_one_folder_a_class(tmp_path: Path) -> None:
    made = make_photos(tmp_path, count=20)

    paths = made.paths()
    assert len(paths) == 20
    assert [path.name for path in sorted(made.root.iterdir())] == list(CLASSES)
    assert made.num_bytes == sum(path.stat().st_size for path in paths)
    for path in paths:
        assert MIN_BYTES <= path.stat().st_size <= MAX_BYTES
        with Image.open(path) as image:
            assert image.format == "JPEG"
            assert image.mode == "RGB"
            assert 300 <= min(image.size) <= max(image.size) <= 580


@pytest.mark.slow
def test_they_are_the_same_every_time(tmp_path: Path) -> None:
    one, same = (make_photos(tmp_path / name, count=12) for name in ("one", "same"))
    assert one.digest == same.digest
    assert [path.read_bytes() for path in one.paths()] == [path.read_bytes() for path in same.paths()]


def test_a_second_run_finds_the_first_ones_images(tmp_path: Path) -> None:
    first = make_photos(tmp_path, count=10)
    drawn: list[None] = []

    second = make_photos(tmp_path, count=10, on_photo=lambda: drawn.append(None))

    assert second == first
    assert drawn == []


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["an image is gone", "the facts are gone", "the facts are of another recipe"])
def test_a_damaged_folder_is_made_again(tmp_path: Path, damage: str) -> None:
    first = make_photos(tmp_path, count=10)
    facts = first.root.parent / "photos.json"
    if damage == "an image is gone":
        first.paths()[0].unlink()
    elif damage == "the facts are gone":
        facts.unlink()
    else:
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "version": 0}))

    again = make_photos(tmp_path, count=10)

    assert again == first
    assert len(again.paths()) == 10


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_photos(tmp_path, count=10, on_photo=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_copies_have_the_same_pixels_but_are_different_files(tmp_path: Path) -> None:
    photos = make_photos(tmp_path, count=10)

    many = replicate_photos(photos, min_bytes=2 * photos.num_bytes + 1)

    contents = [path.read_bytes() for path in many.paths()]
    assert many.count == 30 == len(contents) == len(set(contents))
    assert many.num_bytes >= 2 * photos.num_bytes + 1
    original = photos.paths()[0]
    copies = [path for path in many.paths() if path.name.endswith(original.name)]
    assert len(copies) == 3
    assert {Image.open(io.BytesIO(path.read_bytes())).tobytes() for path in copies} == {
        Image.open(io.BytesIO(original.read_bytes())).tobytes()
    }
    assert replicate_photos(photos, min_bytes=2 * photos.num_bytes + 1) == many


def test_a_cut_that_never_fits_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos_module, "MIN_BYTES", MAX_BYTES + 1)
    monkeypatch.setattr(photos_module, "_MAX_DRAWS", 3)
    with pytest.raises(RuntimeError, match="3 draws"):
        make_photos(tmp_path, count=1)


def test_a_count_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make_photos(tmp_path, count=0)
