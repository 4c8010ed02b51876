"""The benchmark of the drop-in loader, small."""

from __future__ import annotations

import multiprocessing

import pytest

from benchmarks import drop_in, local_items
from benchmarks.drop_in import FULL, Case


def test_figures_are_medians():
    epochs = [{"batch_s": batch_s, "first_batch_s": 0.5, "cpu_ms": 2.0} for batch_s in (0.4, 0.9, 0.5)]
    ours = {"batch_s": 0.05, "first_batch_s": 0.1, "cpu_ms": 1.0}
    row = drop_in._row(Case("botocore", 2, 64), epochs, [ours])
    assert (row["vanilla_batch_s"], row["ours_batch_s"], row["speedup"]) == (0.5, 0.05, 10.0)
    assert (row["vanilla_items_per_s"], row["ours_items_per_s"]) == (64, 640)


def test_the_main_case_is_the_default():
    assert FULL.cases[0] == Case("botocore", 2, 64)
    assert FULL.num_rounds >= 5


def cell(kind, ratio):
    return {"kind": kind, "num_workers": 0, "ratio": ratio}


def test_a_kind_whose_package_is_missing_is_said_to_be(monkeypatch):
    monkeypatch.setattr(drop_in, "is_installed", lambda kind: False)
    row = drop_in._local_row("Hugging Face datasets", 2, FULL, "")
    assert (row["ratio"], row["why_not"]) == (None, "not installed")
    assert drop_in._worst([row, cell("in memory", 1.2)])["never_slower_min"] == 1.2


@pytest.mark.slow
def test_every_kind_gives_batches_on_both_sides(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda *args, **kwargs: None)
    for kind in local_items.KINDS:
        if local_items.is_installed(kind) and "JPEG" not in kind:
            taken = local_items.epoch_times(kind, 0, 1, 0.001, str(tmp_path))
            assert {side: len(times) for side, times in taken.items()} == dict.fromkeys(local_items.SIDES, 1)


def test_an_epoch_without_cpu_time_has_no_quotient() -> None:
    assert drop_in._quotient([[(0.02, 0.01), (0.03, 0.01)]]) == 2.5
    assert drop_in._quotient([[(0.01, 0.0), (0.02, 0.01)]]) is None


@pytest.mark.parametrize(("pace", "processes"), [(1.0, 1), (0.9, 7)])
def test_a_cell_that_looks_slower_is_measured_in_more_processes(monkeypatch, pace, processes) -> None:
    paces = iter([pace, 1.0, 1.1, 0.9, 1.0, 1.0, 1.2])

    def measure(function, arguments, **options):
        ours_s = 1 / next(paces)
        return {"torch": [(1.0, 1.0)] * 3, "ours": [(ours_s, ours_s)] * 3, "torch_again": [(1.0, 1.0)] * 3}

    monkeypatch.setattr(drop_in, "in_fresh_process", measure)
    row = drop_in._local_row("in memory", 2, FULL, "")
    assert (row["ratio"], row["cpu_ratio"], row["to_itself"], row["num_processes"]) == (1.0, 1.0, 1.0, processes)
    assert row["spread"]["torch_s"] == [1.0, 1.0]
