from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from msgspec import structs

from benchmarks.adopt import CONTESTS, _ratio, _row, _Side, _write_tars
from benchmarks.peers.catalog import find
from benchmarks.peers.job import Job, Outcome

JOB = Job(peer="ours", task="epoch", photos="")


def side(**rates: dict[int, float]) -> _Side:
    """A side that delivered ten images per epoch, at rates by kind of epoch and round."""
    made = _Side("webdataset", "in_place", "python", JOB, caches=True)
    for epoch, by_round in rates.items():
        for number, rate in by_round.items():
            made.outcomes.setdefault(epoch, {})[number] = Outcome(numbers=list(range(10)), epoch_s=10 / rate, cpu_s=1.0)
    return made


def test_a_ratio_is_the_median_of_those_within_a_round() -> None:
    ours, theirs = side(cold={0: 100, 1: 60, 2: 30}), side(cold={0: 50, 1: 10, 2: 10, 3: 1})
    assert _ratio(ours, theirs, "cold") == 3
    assert _ratio(ours, theirs, "warm") is None  # cold epochs that were cut short have no warm one
    assert list(ours.outcomes) == ["cold"]
    assert _ratio(ours, None, "cold") is None


def test_an_epoch_that_was_cut_short_gives_no_ratio() -> None:
    ours, theirs = side(cold={0: 100, 1: 60}), side(cold={0: 50, 1: 1})
    theirs.outcomes["cold"][1] = structs.replace(theirs.outcomes["cold"][1], complete=False)
    assert _ratio(ours, theirs, "cold") == 2
    assert _row(theirs, "cold")["samples_s"] == 50
    theirs.outcomes["cold"][0] = structs.replace(theirs.outcomes["cold"][0], complete=False)
    assert _ratio(ours, theirs, "cold") is None
    row = _row(theirs, "cold")
    assert (row["rounds"], row["complete"], row["samples_s"]) == (2, 0, None)


def test_a_row_has_medians_and_extremes() -> None:
    made = side(cold={0: 100, 1: 50, 2: 200})
    made.faults = {"wrong bytes"}
    row = _row(made, "cold")
    assert (row["samples_s"], row["spread"]["samples_s"], row["rounds"]) == (100, [50, 200], 3)
    assert (row["cpu_s_per_1000"], row["fault"], row["complete"]) == (100, "wrong bytes", 3)


def test_each_rival_takes_part_in_the_peers_benchmark() -> None:
    assert all(find(contest.rival).environment for contest in CONTESTS)
    assert len({contest.key for contest in CONTESTS}) == len(CONTESTS)


@pytest.mark.parametrize(("size", "num_tars"), [(1, 3), (8, 2), (100, 1)])
def test_tar_files_of_a_size(tmp_path: Path, size: int, num_tars: int) -> None:
    photos = tmp_path / "photos" / "cat"
    photos.mkdir(parents=True)
    for number in range(3):
        (photos / f"{number}.jpg").write_bytes(b"%d" % number * 4)
    folder = tmp_path / "tars"
    folder.mkdir()
    _write_tars(
        Job(
            peer="webdataset_tars", task="write", photos=str(tmp_path / "photos"), order=[2, 0, 1], folder=str(folder),
            options={"tar_bytes": size},
        )
    )  # fmt: skip
    names = []
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as tar:
            names.append(tar.getnames())
    assert [name for each in names for name in each] == ["0000002.jpg", "0000000.jpg", "0000001.jpg"]
    assert len(names) == num_tars
