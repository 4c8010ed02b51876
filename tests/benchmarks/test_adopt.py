from __future__ import annotations

from pathlib import Path

from msgspec import structs

from benchmarks.adopt import CONTESTS, _Side, figures_of, row
from benchmarks.peers.catalog import find
from benchmarks.peers.job import Job, Outcome
from benchmarks.peers.turns import median_ratio, take_turns
from benchmarks.report_text import adopt_rows

JOB = Job(peer="ours", photos="")


def rounds(*rates: float) -> dict[int, Outcome]:
    """Epochs of ten images at these rates."""
    numbers = list(range(10))
    return {at: Outcome(numbers=numbers, epoch_s=10 / rate, cpu_s=1.0) for at, rate in enumerate(rates)}


def test_a_ratio_is_the_median_of_those_within_a_round_that_both_ended() -> None:
    ours, theirs = rounds(100, 60, 30), rounds(50, 10, 10, 1)
    assert median_ratio(ours, theirs, lambda outcome: outcome.samples_s) == 3
    assert median_ratio(ours, {}, lambda outcome: outcome.samples_s) is None
    theirs[1] = structs.replace(theirs[1], complete=False)
    assert median_ratio(ours, theirs, lambda outcome: outcome.samples_s) == 2.5


def test_a_row_has_medians_and_extremes_of_the_epochs_that_ended() -> None:
    side = _Side("in_place", "python", JOB, True, {"cold": rounds(100, 50, 200)}, faults={"wrong bytes"})
    found = row(side, "cold")
    assert (found["samples_s"], found["spread"]["samples_s"], found["rounds"]) == (100, [50, 200], 3)
    assert (found["cpu_s_per_1000"], found["fault"], found["complete"]) == (100, "wrong bytes", 3)
    side.outcomes["cold"] = {at: structs.replace(each, complete=False) for at, each in side.outcomes["cold"].items()}
    assert (row(side, "cold")["complete"], row(side, "cold")["samples_s"]) == (0, None)


def test_sides_take_turns_and_a_warm_epoch_follows_a_cold_one_that_ended(tmp_path: Path) -> None:
    sides = [_Side(name, "python", JOB, name != "plain") for name in ("plain", "kept", "cut", "failed")]
    asked: list[tuple[str, str, int]] = []

    def run(side: _Side, job: Job, epoch: str, number: int) -> Outcome | None:
        asked.append((side.name, epoch, number))
        assert (job.cache_dir is not None) == side.caches
        return None if side.name == "failed" else Outcome(numbers=[0], complete=side.name != "cut")

    take_turns(sides, 2, tmp_path / "cache", run)
    turns = [[("plain", "cold")], [("kept", "cold"), ("kept", "warm")], [("cut", "cold")], [("failed", "cold")]]
    assert asked == [(*each, at) for at, step in ((0, 1), (1, -1)) for turn in turns[::step] for each in turn]
    assert {side.name: list(side.outcomes) for side in sides if side.outcomes} == {
        "plain": ["cold"], "kept": ["cold", "warm"], "cut": ["cold"],
    }  # fmt: skip


def test_ratios_are_in_place_over_native_and_over_the_rival_on_the_same_bytes() -> None:
    native = _Side("native", "python", JOB, True, {"cold": rounds(100, 100), "warm": rounds(100)})
    in_place = _Side("in_place", "python", JOB, True, {"cold": rounds(90, 80)}, format="webdataset")
    rival = _Side("rival", "python", JOB, True, {"cold": rounds(10, 20)}, format="webdataset", loader="WebDataset")
    failed = _Side("rival", "python", JOB, True, format="mds", error="Traceback\nIndexError: 0")
    found = figures_of([native, in_place, rival, failed])
    assert (found["tar_vs_native"], found["warm_vs_native"]) == (0.85, None)
    assert (found["tar_vs_webdataset"], found["mds_vs_streaming"], found["parquet_vs_hf"]) == (6.5, None, None)
    assert [(each["side"], each["epoch"], each["loader"], each["error"]) for each in found["rows"]] == [
        ("native", "cold", None, None), ("native", "warm", None, None), ("in_place", "cold", None, None),
        ("rival", "cold", "WebDataset", None), ("rival", "cold", None, failed.error),
    ]  # fmt: skip


def test_the_report_says_why_a_rival_did_not_finish() -> None:
    cut = {0: structs.replace(rounds(1)[0], complete=False)}
    sides = [
        _Side("rival", "python", JOB, True, {"cold": rounds(10)}, format="webdataset"),
        _Side("rival", "python", JOB, True, {"cold": cut}, format="litdata"),
        _Side("rival", "python", JOB, True, format="mds", error="Traceback\nIndexError: 0"),
    ]
    figures = {**figures_of(sides), "errors": {"mds": "…", "hf_datasets": "no packages"}, "load": {"limit_s": 60.0}}
    assert [(each["format"], each["rate"]) for each in adopt_rows(figures)] == [
        ("webdataset", "10"), ("litdata", "did not finish (limit 60 s)"), ("mds", "did not finish (IndexError: 0)"),
        ("hf_datasets", "did not finish (no packages)"),
    ]  # fmt: skip


def test_each_rival_takes_part_in_the_peers_benchmark() -> None:
    assert all(find(name).environment for contest in CONTESTS for name in contest.rivals)
