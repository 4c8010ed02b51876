"""The peers' benchmark: what is made of the epochs, and that it runs, with ours and torch alone."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.harness import CommandError
from benchmarks.peers.__main__ import main
from benchmarks.peers.catalog import FULL, OURS, PEERS, QUICK, Cell, find
from benchmarks.peers.figures import (
    Run,
    check,
    expected_digest,
    headline,
    image_digest,
    is_slow,
    make_row,
    shuffle_distance,
    with_earlier,
    without_paths,
)
from benchmarks.peers.job import Job, Outcome
from benchmarks.peers.measuring import Measuring, _Images
from benchmarks.peers.processes import python_of, requirements_file
from benchmarks.photos import PhotoFolder

IMAGES = [f"image {number}".encode() for number in range(8)]
DIGESTS = [image_digest(data, number) for number, data in enumerate(IMAGES)]
CELL = Cell("raw", 30, 2)


def outcome(numbers: list[int], *, epoch_s: float = 1.0, complete: bool = True, digest: str | None = None) -> Outcome:
    known = [number for number in numbers if number < len(DIGESTS)]
    return Outcome(
        numbers=numbers,
        batch_sizes=[len(numbers)],
        digest=expected_digest(known, DIGESTS) if digest is None else digest,
        first_batch_s=epoch_s / 4,
        half_s=epoch_s / 2,
        epoch_s=epoch_s,
        cpu_s=epoch_s / 10,
        complete=complete,
    )


class FakeServer:
    """Stands in for a server: has a way to it, which nobody goes."""

    def storage_options(self) -> dict[str, str]:
        return {"endpoint_url": "http://localhost", "access_key_id": "name", "secret_access_key": "secret"}


class TestCheck:
    def test_each_image_once_in_any_order(self) -> None:
        assert check(outcome([3, 1, 2, 0, 7, 6, 5, 4]), DIGESTS, decoded=False) == ""

    def test_missing_and_repeated(self) -> None:
        assert check(outcome([0, 0, 2, 3, 4, 5, 6, 7]), DIGESTS, decoded=False) == ("1 images again, 1 images missing")

    def test_an_epoch_that_was_cut_short_may_lack_some(self) -> None:
        assert check(outcome([0, 1], complete=False), DIGESTS, decoded=False) == ""
        assert check(outcome([0, 0], complete=False), DIGESTS, decoded=False) == "1 images again"

    def test_wrong_bytes(self) -> None:
        assert check(outcome(list(range(8)), digest="0" * 32), DIGESTS, decoded=False) == "wrong bytes"

    def test_bytes_of_another_image(self) -> None:
        swapped = sum(image_digest(IMAGES[number ^ 1], number) for number in range(8)) % 2**128
        assert check(outcome(list(range(8)), digest=f"{swapped:032x}"), DIGESTS, decoded=False) == "wrong bytes"

    def test_images_that_do_not_exist(self) -> None:
        assert "1 images that do not exist" in check(outcome([*range(7), 9]), DIGESTS, decoded=True)


def test_a_row_has_medians_and_extremes() -> None:
    runs = [Run(outcome(list(range(8)), epoch_s=epoch_s), number) for number, epoch_s in enumerate((1.0, 2.0, 4.0))]
    row = make_row(find(OURS), CELL, "cold", runs, list(range(8)), None)
    assert (row["samples_s"], row["spread"]["samples_s"]) == (4.0, [2.0, 8.0])
    assert (row["first_batch_s"], row["samples"], row["rounds"], row["complete"]) == (0.5, 8, 3, True)
    assert row["fault"] is None


def test_a_peer_that_fails_has_its_error_in_its_row() -> None:
    row = make_row(find("litdata"), CELL, "cold", [], [], "ImportError: no")
    assert (row["error"], row["samples_s"], row["rounds"]) == ("ImportError: no", None, 0)


def test_a_peer_that_fails_a_turn_gets_another_chance(tmp_path: Path) -> None:
    peer = find("litdata")
    measuring = Measuring(QUICK, [peer], tmp_path, Console(quiet=True))
    for able in ([peer], []):
        with measuring._told(peer, "raw", chances=2):
            raise CommandError("its shard is not there")
        assert measuring._able("raw") == able
    assert measuring._able("decoded") == [peer]
    with pytest.raises(CommandError), measuring._told(find(OURS), "raw", chances=2):
        raise CommandError("ours must not")


def test_where_cold_epochs_are_cut_short_one_whole_epoch_fills_the_cache_for_all_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, limits = find("litdata"), []

    def run_job(python: str, job: Job, **options: object) -> tuple[Outcome, int]:
        assert job.cache_dir is not None
        whole = Path(job.cache_dir) / "whole"
        complete = whole.exists()
        limits.append(job.limit_s)
        if job.limit_s is None:
            whole.touch()
            if len(limits) == 2:  # cold and cut short, then this one
                raise CommandError("no answer")
        else:
            whole.unlink(missing_ok=True)  # a loader that leaves its cache as it likes
        return outcome(list(range(8)), complete=complete), 0

    monkeypatch.setattr("benchmarks.peers.measuring.run_job", run_job)
    measuring = Measuring(FULL, [peer], tmp_path, Console(quiet=True))
    photos = PhotoFolder(tmp_path, count=8, num_bytes=64, digest="")
    measuring._images["raw"] = _Images(photos, list(range(8)), DIGESTS, {})
    measuring._pythons[peer.name] = sys.executable
    measuring._measure(CELL, FakeServer())
    cold, warm = (measuring._runs[peer.name, CELL, epoch] for epoch in ("cold", "warm"))
    assert [run.outcome.complete for run in cold] == [False] * 5
    assert [run.outcome.complete for run in warm] == [True] * 4  # all but the turn in which filling failed
    assert limits.count(None) == 2
    assert not (tmp_path / "peers" / "run" / "filled").exists()


def test_rows_of_an_earlier_run_say_when_they_were_measured() -> None:
    earlier = {
        "rows": [{"peer": "ours", "samples_s": 1.0}, {"peer": "slow"}, {"peer": "older", "measured": "last year"}],
        "machine": {"measured_at": "yesterday"},
        "environments": {"a": ["1"], "b": ["1"]},
    }
    figures = with_earlier({"rows": [{"peer": "ours", "samples_s": 2.0}], "environments": {"b": ["2"]}}, earlier)
    assert figures["rows"] == [
        {"peer": "ours", "samples_s": 2.0},
        {"peer": "slow", "measured": "yesterday"},
        {"peer": "older", "measured": "last year"},
    ]
    assert figures["environments"] == {"a": ["1"], "b": ["2"]}
    assert "cold_raw_vs_best" not in figures


def test_cells_that_were_not_measured_again_stay_and_so_does_what_is_said_of_the_whole() -> None:
    load = {"latencies_ms": [30, 5], "workers": [2, 1]}
    earlier = {
        "rows": [
            _row("ours", 30), _row("litdata", 30), _row("ours_local", None), _row("ours", 5), _row("litdata", 5),
            _row("ours_local", None, samples_s=0.0),
        ],
        "cold_raw_vs_best": 2.5,
        "load": load,
        "began": "yesterday",
        "first_byte_ms": {"30": 31.0, "5": 6.0},
    }  # fmt: skip
    later = {
        "rows": [_row("ours", 5, samples_s=9.0)],
        "environments": {},
        "load": load,
        "began": "today",
        "first_byte_ms": {"5": 7.0},
        "cold_raw_vs_best": None,
    }
    figures = with_earlier(later, earlier)
    assert (figures["cold_raw_vs_best"], figures["began"]) == (2.5, "yesterday")
    assert figures["first_byte_ms"] == {"30": 31.0, "5": 6.0}
    assert figures["rows"] == [
        _row("ours", 30),
        _row("litdata", 30),
        _row("ours_local", None),  # the first, which is that of the headline's latency
        _row("litdata", 5),
        {**_row("ours", 5, samples_s=9.0), "measured": "today"},
    ]
    half = {**later, "rows": [_row("ours", 30, samples_s=8.0)]}
    figures = with_earlier(half, figures)
    assert figures["cold_raw_vs_best"] == 2.5  # one of the two cells leaves the ratios, which are of one run
    assert [row.get("measured") for row in figures["rows"]] == [None, None, None, "today", "today"]
    again = {
        **half,
        "rows": [_row("ours", 30, samples_s=7.0), _row("ours", 30, kind="decoded")],
        "began": "later",
        "first_byte_ms": {"30": 32.0},
    }
    figures = with_earlier(again, figures)
    assert figures["first_byte_ms"] == {"30": 32.0, "5": 6.0}  # the other's, of latencies that it has alone
    assert figures["cold_raw_vs_best"] is None  # compared with nobody in its run
    assert [row.get("measured") for row in figures["rows"]] == [None, None, *["yesterday"] * 3, "today"]


def _row(peer: str, latency_ms: int | None, *, kind: str = "raw", samples_s: float = 1.0) -> dict[str, Any]:
    return {
        "peer": peer,
        "kind": kind,
        "latency_ms": latency_ms,
        "workers": 2,
        "epoch": "cold",
        "samples_s": samples_s,
    }


def test_only_some_cells_are_measured_and_the_local_drive_at_one_latency() -> None:
    side = Cell("raw", 130, 2)
    assert [cell for cell in FULL.cells() if FULL.measures(cell)] == FULL.cells()
    assert [cell for cell in FULL.cells() if replace(FULL, only=(side,)).measures(cell)] == [side]
    local, far = find("ours_local"), find("ours_objects")
    assert [[FULL.has_turn(peer, cell) for cell in FULL.cells()] for peer in (local, far)] == [
        [True, True, False, False, True, True],
        [True] * 6,
    ]


def test_an_unknown_cell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--cell", "raw:31:2"])
    assert "invalid choice: 'raw:31:2'" in capsys.readouterr().err


def test_errors_do_not_name_places_of_this_machine() -> None:
    error = 'File "/home/me/venv/lib/python3.11/site-packages/peer/x.py", line 1\n/home/me/project/benchmarks/side.py s3://a/b'
    assert without_paths(error, "/home/me/project") == (
        'File "…/site-packages/peer/x.py", line 1\nbenchmarks/side.py s3://a/b'
    )


def test_what_is_said_of_the_whole_stays_where_ours_was_not_measured_again() -> None:
    earlier = {"rows": [{"peer": "ours"}, {"peer": "local_files"}], "cold_raw_vs_best": 2.5, "load": "whole"}
    later = {"rows": [{"peer": "local_files"}], "environments": {}, "cold_raw_vs_best": None, "began": "today"}
    figures = with_earlier(later, earlier)
    assert (figures["cold_raw_vs_best"], figures["load"]) == (2.5, "whole")
    assert figures["rows"] == [{"peer": "ours"}, {"peer": "local_files", "measured": "today"}]


def test_the_headline_compares_with_the_best_within_a_round() -> None:
    decoded = Cell("decoded", 30, 2)

    def runs(*epochs_s: float) -> list[Run]:
        return [Run(outcome(list(range(8)), epoch_s=epoch_s), number) for number, epoch_s in enumerate(epochs_s)]

    found = headline(
        {
            (OURS, CELL, "cold"): runs(1, 2, 1),
            ("litdata", CELL, "cold"): runs(3, 6, 3),
            ("webdataset", CELL, "cold"): runs(9, 9, 9),
            ("torch_boto3", CELL, "cold"): [Run(outcome([0], epoch_s=0.1), 0, "7 images missing")],
            ("ours_objects", CELL, "cold"): runs(0.1, 0.1, 0.1),
            ("local_files", CELL, "cold"): runs(0.1, 0.1, 0.1),
            (OURS, CELL, "warm"): runs(1, 1, 1),
            (OURS, decoded, "warm"): runs(1, 1, 1),
            ("webdataset", decoded, "cold"): runs(2, 2, 2),
        },
        CELL,
        decoded,
    )
    assert (found["cold_raw_vs_best"], found["best"]["cold_raw_vs_best"]) == (3.0, "litdata")
    assert found["warm_raw_vs_best"] == 3.0  # nobody else keeps anything: their cold epochs count
    assert found["decoded_vs_best"] == 2.0
    assert found["first_batch_vs_best"] == 0.3333


def test_who_fails_in_one_cell_leaves_what_is_known_of_others(tmp_path: Path) -> None:
    measured = FULL.cells()[0]
    measuring = Measuring(replace(FULL, only=(measured,)), [find("mosaicml")], tmp_path, Console(quiet=True))
    photos = PhotoFolder(tmp_path, count=8, num_bytes=64, digest="")
    measuring._images["raw"] = _Images(photos, list(range(8)), DIGESTS, {})
    with measuring._told(find("mosaicml"), "raw"):
        raise CommandError("IndexError")
    rows: Any = measuring.figures("minio")["rows"]
    assert {(row["latency_ms"], row["workers"], row["error"]) for row in rows} == {(30, 2, "IndexError")}


def test_without_a_rival_there_is_no_headline() -> None:
    found = headline({(OURS, CELL, "cold"): [Run(outcome([0]), 0)]}, CELL, CELL)
    assert found["cold_raw_vs_best"] is None


def test_cells_begin_with_the_headline() -> None:
    cells = FULL.cells()
    assert cells[:2] == [Cell("raw", 30, 2), Cell("decoded", 30, 2)]
    assert len(set(cells)) == len(cells)


def test_every_peer_has_a_program_and_pinned_packages() -> None:
    programs = Path(str(sys.modules["benchmarks.peers"].__file__)).parent / "programs"
    for peer in PEERS:
        assert (programs / f"{peer.program}.py").exists(), peer.name
        if peer.environment is not None:
            pinned = requirements_file(peer.environment).read_text().splitlines()
            assert all("==" in line or line.startswith("    # ") for line in pinned), peer.name
            assert any(line.startswith("msgspec==") for line in pinned), peer.name


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peer", "nobody"])
    assert "invalid choice: 'nobody'" in capsys.readouterr().err


@pytest.mark.processes
def test_packages_that_cannot_be_installed_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = tmp_path / "pinned.txt"
    pinned.write_text("no-such-package-at-all @ file:///nowhere\n")
    monkeypatch.setattr("benchmarks.peers.processes.requirements_file", lambda _: pinned)
    with pytest.raises(CommandError, match="ended with status"):
        python_of("broken", tmp_path / "environments")


def test_slow_is_less_than_a_quarter_of_our_pace() -> None:
    assert is_slow(outcome([0, 1], epoch_s=9.0), outcome([0, 1], epoch_s=2.0))
    assert not is_slow(outcome([0, 1], epoch_s=7.0), outcome([0, 1], epoch_s=2.0))


def test_a_peer_that_is_slow_in_the_headline_has_no_turn_beside_it() -> None:
    slow_peer, cells = find("torch_s3fs"), FULL.cells()
    measuring = Measuring(FULL, [find(OURS), slow_peer], Path(), Console())
    assert all(measuring._has_turns(slow_peer, cell) for cell in cells)  # nothing is known yet
    measuring._runs[OURS, cells[0], "cold"].append(Run(outcome([0, 1], epoch_s=1.0), 0))
    measuring._runs[slow_peer.name, cells[0], "cold"].append(Run(outcome([0, 1], epoch_s=9.0), 0))
    had = [cell for cell in cells if measuring._has_turns(slow_peer, cell)]
    assert had == [cells[0], *(cell for cell in cells if cell.kind == "decoded")]
    assert all(measuring._has_turns(find(OURS), cell) for cell in cells)


def test_a_peer_that_is_slow_beside_the_headline_keeps_its_turns() -> None:
    peer, side_cell = find("webdataset"), FULL.cells()[-1]
    measuring = Measuring(FULL, [find(OURS), peer], Path(), Console())
    measuring._runs[OURS, side_cell, "cold"].append(Run(outcome([0, 1], epoch_s=1.0), 0))
    measuring._runs[peer.name, side_cell, "cold"].append(Run(outcome([0, 1], epoch_s=9.0), 0))
    assert measuring._has_turns(peer, side_cell)


def test_images_that_do_not_exist_say_nothing_of_shuffling() -> None:
    assert shuffle_distance(Outcome(numbers=[0, 99], batch_sizes=[2]), range(10)) is None


def test_shuffling_is_looked_at_where_images_lie() -> None:
    order = random.Random(1).sample(range(1000), 1000)
    sorted_run = Outcome(numbers=order, batch_sizes=[100] * 10)
    mixed = Outcome(numbers=random.Random(2).sample(range(1000), 1000), batch_sizes=[100] * 10)
    rows = [
        make_row(find(OURS), CELL, "cold", [Run(_timed(one), 0)], order, None)["shuffle_distance"]
        for one in (sorted_run, mixed)
    ]
    assert rows[0] == 0.9  # ten of a hundred classes in each batch
    assert rows[1] < 0.5


def _timed(one: Outcome) -> Outcome:
    return Outcome(
        numbers=one.numbers, batch_sizes=one.batch_sizes, epoch_s=1.0, half_s=0.5, first_batch_s=0.1, cpu_s=1.0
    )
