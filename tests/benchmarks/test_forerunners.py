"""The forerunners' benchmark, with a few images: that all sides bring the same ones, and what is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import forerunners
from benchmarks.figures import check_same_samples
from benchmarks.filling import put_objects, write_shards
from benchmarks.forerunners import FULL, QUICK, committed_or, expected, main, places_of
from benchmarks.fresh_process import in_fresh_process
from benchmarks.layers import CASES, READERS, Case, Cell, Settings, measure_cell, measure_layer, measure_reading
from benchmarks.photos import PhotoFolder, make_photos
from benchmarks.timed_photos import Where, order_of

PRELOAD = ("benchmarks.layers",)
SETTINGS = Settings(4, 1, 4)
NUM_PHOTOS = 12


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Where:
    """Images on the local drive only."""
    folder = tmp_path_factory.mktemp("forerunners")
    photos = make_photos(folder, count=NUM_PHOTOS)
    write_shards(photos, str(folder / "shards"))
    return places_of(photos, str(folder / "shards"), "nowhere", {})


def measured(measure, *arguments):
    return in_fresh_process(measure, arguments, what=str(arguments[0]), preload=PRELOAD, timeout_s=60)


# One of each layer: `make bench-smoke` runs all of them, with the same check.
LOCAL = next(case for case in CASES if case.place == "local" and case.layer == "loader")


@pytest.mark.processes
@pytest.mark.parametrize("case", [LOCAL, Case("local", "training", "threads")], ids=str)
def test_a_layer_brings_every_image_from_the_local_drive(where, case):
    epoch = measured(measure_layer, case, where, None, SETTINGS)
    check_same_samples({"files": [expected(where, None, raw=case.is_raw)], "side": [epoch]})
    assert 0 < epoch.first_s <= epoch.epoch_s
    assert len(epoch.load_s) in ((0,) if case.layer in ("loader", "training") and case.side == "shards" else (3,))
    assert epoch.cpu_s > 0
    assert epoch.peak_rss_mb > 50


@pytest.mark.processes
@pytest.mark.parametrize("name", list(READERS)[:1])
def test_a_reader_brings_every_image(where, name):
    reading = measured(measure_reading, name, where, 0.01)
    check_same_samples({"files": [expected(where, None, raw=True)], "reader": [reading]})
    assert reading.timed_samples % NUM_PHOTOS == 0
    assert 0 < reading.first_s <= reading.epoch_s


@pytest.fixture
def far(where, s3_server, s3_bucket) -> Where:
    """The same images in a bucket."""
    options = s3_server.storage_options()
    far = Where(where.root, where.names, where.labels, where.local_shards, s3_bucket.name, options)
    photos = PhotoFolder(Path(where.root), NUM_PHOTOS, 0, 0, "")
    put_objects(photos, far.objects_url, options)
    write_shards(photos, far.shards_url, options)
    return far


FROM_S3 = next(case for case in CASES if case.place == "s3" and case.is_slow)


@pytest.mark.s3
@pytest.mark.parametrize("case", [FROM_S3, Case("s3", "dataset", "shards")], ids=str)
def test_a_layer_brings_every_image_from_a_bucket(far, case):
    limit = 8 if case.is_slow else None
    epoch = measured(measure_layer, case, far, limit, SETTINGS)
    check_same_samples({"files": [expected(far, limit, raw=case.is_raw)], str(case): [epoch]})


@pytest.mark.s3
@pytest.mark.parametrize("cell", [Cell(1, "auto")], ids=str)
def test_a_cell_brings_what_it_is_to_bring(far, cell):
    found = measured(measure_cell, cell, far, 10)
    check_same_samples({"files": [expected(far, 10, raw=True)], str(cell): [found]})


def test_what_is_expected_is_of_the_files(where):
    whole, part = expected(where, None, raw=True), expected(where, 4, raw=True)
    assert (whole.num_samples, sum(whole.class_counts)) == (NUM_PHOTOS, NUM_PHOTOS)
    assert (part.num_samples, part.digest) != (whole.num_samples, whole.digest)
    assert expected(where, None, raw=False).digest != whole.digest


def test_the_order_is_every_numbers_and_a_limit_takes_its_beginning():
    assert sorted(order_of(100, None)) == list(range(100))
    assert order_of(100, 10) == order_of(100, None)[:10]


def test_slow_sides_read_a_part_and_all_others_everything():
    limits = {case: FULL.limit(case) for case in CASES}
    assert {case.side for case, limit in limits.items() if limit is not None} == {"vanilla"}
    assert {case.place for case, limit in limits.items() if limit is not None} == {"s3"}
    assert limits[Case("s3", "loader", "vanilla")] == 2 * FULL.num_slow
    assert FULL.num_rounds >= 5
    assert FULL.map_limit(Cell(0, 1)) == 16
    assert FULL.map_limit(Cell(2, 4)) == 128
    assert FULL.map_limit(Cell(2, "auto")) == FULL.num_photos
    assert QUICK.map_limit(Cell(2, "auto")) == QUICK.num_photos


def test_impossible_options(capsys):
    with pytest.raises(SystemExit):
        main(["--rounds", "0"])
    assert "--rounds is at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_secrets_stay_out_of_what_is_said(where):
    assert "hush" not in repr(Where(where.root, (), (), "", "bucket", {"secret_access_key": "hush"}))


def test_committed_figures_are_taken_with_their_date(tmp_path):
    figures = {"rows": [1], "machine": {"measured_at": "2026-01-02 03:04 UTC"}}
    (tmp_path / "pipelines.json").write_text(json.dumps(figures))
    found = committed_or("pipelines", Console(), results=tmp_path)
    origin = "benchmarks/results/pipelines.json, measured at 2026-01-02 03:04 UTC"
    assert found == {**figures, "origin": origin}


def test_without_any_the_benchmark_is_run(tmp_path, monkeypatch):
    monkeypatch.setitem(forerunners._RUNS, "lossless", lambda console: {"rows": [2]})
    found = committed_or("lossless", Console(), results=tmp_path)
    assert found == {"rows": [2], "origin": "benchmarks.lossless, run now"}
