"""The benchmark of emulated accelerators: the search for their number, their steps, and the figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from benchmarks.accelerators import WORKLOADS, headline, largest
from benchmarks.peers.job import Job
from benchmarks.peers.side import _Accelerators
from benchmarks.photos import PhotoFolder, pad_photos


@pytest.mark.parametrize(("guess", "tried"), [(1, [1, 2, 3]), (2, [2, 3]), (5, [2, 3, 5]), (40, [1, 2, 3, 6])])
def test_the_largest_number_that_is_busy_enough(guess: int, tried: list[int]) -> None:
    number, found = largest(lambda number: min(1.0, 2.2 / number), 0.9, guess, most=6)
    assert (number, sorted(found)) == (2, tried)


def test_none_is_busy_enough() -> None:
    assert largest(lambda number: 0.5 / number, 0.9, 3, most=64)[0] == 0


def test_the_search_ends_at_the_most() -> None:
    assert largest(lambda number: 1.0, 0.9, 1, most=3)[0] == 3


def test_accelerators_compute_together_once_each_has_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("benchmarks.peers.side.perf_counter", lambda: clock[0])
    monkeypatch.setattr("benchmarks.peers.side.sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    looked_at: list[int] = []

    def look_at(images: object, numbers: list[int]) -> None:
        clock[0] += 0.1  # while they compute
        looked_at.extend(numbers)

    both = _Accelerators(Job(peer="ours", photos="", batch_size=2, accelerators=2, computation_s=1.0))
    assert both.utilisation() is None
    for number in range(5):
        clock[0] += 0.25  # a batch comes
        both.take([], [2 * number, 2 * number + 1], look_at)
    both.end(look_at)
    assert looked_at == list(range(10))
    assert both.utilisation() == pytest.approx(2.0 / 2.5)  # the wait for the first step does not count


def test_photographs_are_padded_to_the_size_of_a_workload(tmp_path: Path) -> None:
    folder = tmp_path / "photos-1" / "images" / "cat"
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "0.jpg")
    size = (folder / "0.jpg").stat().st_size
    padded = pad_photos(PhotoFolder(folder.parent, 1, size, ""), count=3, num_bytes=2_000)
    files = [path.read_bytes() for path in padded.paths()]
    assert [len(data) for data in files] == [2_000] * 3
    assert len(set(files)) == 3
    with Image.open(padded.paths()[0]) as image:
        assert image.size == (8, 8)
    assert pad_photos(PhotoFolder(folder.parent, 1, size, ""), count=3, num_bytes=2_000) == padded


def test_figures_name_the_best_peer() -> None:
    workload = WORKLOADS[0]
    rows = [
        {"workload": workload.name, "kind": kind, "peer": peer, "epoch": epoch, "accelerators": number}
        for kind, peer, epoch, number in [
            ("raw", "ours", "cold", 4), ("raw", "ours", "warm", 9), ("raw", "litdata", "cold", 1),
            ("raw", "mosaicml", "cold", 2), ("raw", "mosaicml", "warm", None), ("decoded", "ours", "warm", 3),
        ]
    ]  # fmt: skip
    figures = headline(WORKLOADS, rows)
    assert figures["resnet50_h100_au90"] == 4
    assert figures["best_peer_resnet50_h100_au90"] == 2
    assert figures["best_peer_resnet50_h100_au90_warm"] is None
    assert figures["resnet50_h100_au90_decoded_warm"] == 3
    assert figures["retinanet_b200_au85"] is None


def test_a_busy_accelerator_takes_what_mlperf_storage_says() -> None:
    assert [round(workload.samples_s) for workload in WORKLOADS[:3]] == [1786, 505, 22]
