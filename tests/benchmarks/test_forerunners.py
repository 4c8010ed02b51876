"""The forerunners' benchmark, with a few images: that sides bring the same ones, and which jobs they get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec import structs

from benchmarks.forerunners import FULL, QUICK, cell_job, check, layer_job, measure, measure_reading
from benchmarks.forerunners_figures import CASES, Case, Cell
from benchmarks.fresh_process import in_fresh_process
from benchmarks.peers.bucket import led_to, put_objects
from benchmarks.peers.figures import image_digest
from benchmarks.peers.job import Job, Outcome
from benchmarks.peers.programs import ours
from benchmarks.peers.programs.items import ItemLoader, Photo, collate_timed, order_of
from benchmarks.photos import make_photos

NUM_PHOTOS = 12
FAR = Job(peer="items", photos="", bucket="bucket")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Leads to images, and to their shards, on the local drive."""
    folder = tmp_path_factory.mktemp("forerunners")
    photos, order = make_photos(folder, count=NUM_PHOTOS), list(range(NUM_PHOTOS))
    options = {"folder": str(folder / "shards"), "layout": "local"}
    job = Job(peer="items", photos=str(photos.root), size=128, order=order, options=options)
    ours.write(job)
    return structs.replace(job, order=[])


@pytest.fixture(scope="module")
def digests(local: Job) -> list[int]:
    paths = sorted(Path(local.photos).glob("*/*.jpg"))
    return [image_digest(path.read_bytes(), number) for number, path in enumerate(paths)]


def measured(job: Job) -> Outcome:
    return in_fresh_process(measure, (job,), what="a layer", preload=("benchmarks.forerunners",), timeout_s=60)


# One of each kind: `make bench-smoke` runs all of them, with the same check.
@pytest.mark.processes
@pytest.mark.parametrize("case", [Case("local", "loader", "vanilla"), Case("local", "training", "shards")], ids=str)
def test_a_layer_brings_every_image_from_the_local_drive(local: Job, digests: list[int], case: Case) -> None:
    job = layer_job(case, QUICK, local, FAR)
    epoch = check(job, measured(job), digests)
    assert 0 < epoch.first_batch_s <= epoch.epoch_s
    assert len(epoch.spans) == (0 if case.side == "shards" else 3)
    assert epoch.cpu_s > 0
    assert epoch.peak_rss_mb > 50


@pytest.mark.s3
def test_layers_and_cells_bring_every_image_from_a_bucket(
    local: Job, digests: list[int], s3_server: object, s3_bucket: object
) -> None:
    options = s3_server.storage_options()  # type: ignore[attr-defined]
    far = led_to(structs.replace(local, options={}), options, bucket=s3_bucket.name)  # type: ignore[attr-defined]
    put_objects(f"{s3_bucket.url}/objects", options, sorted(Path(local.photos).glob("*/*.jpg")))  # type: ignore[attr-defined]
    for job in (
        layer_job(Case("s3", "store", "our store"), QUICK, local, structs.replace(far, prefix="objects")),
        layer_job(Case("s3", "loader", "coroutines"), QUICK, local, far),
        cell_job(Cell(0, "auto"), QUICK, far),
    ):
        check(job, measured(job), digests)


@pytest.mark.processes
def test_a_reader_brings_every_image(local: Job, digests: list[int]) -> None:
    reading = measure_reading("shards, shuffled", local, digests, 0.01)
    assert len(reading.numbers) % NUM_PHOTOS == 0
    assert 0 < reading.first_batch_s <= reading.epoch_s
    with pytest.raises(ValueError, match="same images"):
        measure_reading("files, open() in a loop", local, [*digests[1:], digests[0]], 0.01)


def test_other_images_are_noticed(digests: list[int]) -> None:
    job = Job(peer="items", photos="", options={"limit": 4})
    numbers = order_of(NUM_PHOTOS, 4)
    right = f"{sum(digests[number] for number in numbers) % 2**128:032x}"
    check(job, Outcome(numbers=numbers, digest=right), digests)
    for wrong in (Outcome(numbers=numbers[1:], digest=right), Outcome(numbers=numbers, digest="0")):
        with pytest.raises(ValueError, match="same images"):
            check(job, wrong, digests)


def test_slow_sides_read_a_part_and_all_others_everything() -> None:
    limits = {case: FULL.limit(case) for case in CASES}
    assert {(case.place, case.side) for case, limit in limits.items() if limit is not None} == {("s3", "vanilla")}
    assert limits[Case("s3", "loader", "vanilla")] == 2 * FULL.num_slow
    assert FULL.num_rounds >= 5
    assert (FULL.map_limit(Cell(0, 1)), FULL.map_limit(Cell(2, 4))) == (16, 128)
    assert FULL.map_limit(Cell(2, "auto")) == FULL.num_photos


def test_every_case_has_a_job_of_its_own() -> None:
    jobs = [layer_job(case, FULL, structs.replace(FAR, bucket=""), FAR) for case in CASES]
    assert len({repr(job) for job in jobs}) == len(CASES)
    assert {job.train for job in jobs} == {True, False}


def test_items_and_batches_have_their_spans() -> None:
    photos = [Photo(number, torch.full((1,), number), float(number), number + 2.0) for number in (3, 4)]
    images, numbers, (began_s, ended_s) = collate_timed(photos)
    assert (images.tolist(), numbers.tolist(), began_s) == ([[3], [4]], [3, 4], 3.0)

    def loader() -> Iterator[object]:
        yield from photos
        yield images, numbers, (began_s, ended_s)

    made = ItemLoader(loader())
    assert [len(each) for _, each in made] == [1, 1, 2]
    assert made.spans == [(3.0, 5.0), (4.0, 6.0), (3.0, ended_s)]
