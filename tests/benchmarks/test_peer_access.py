from __future__ import annotations

from typing import Any

import pytest

from benchmarks.access import Requests, Workload, peer_accesses

WORKLOAD = Workload(num_samples=10_000, sample_bytes=100_000, num_epochs=3)


def a_row(**changes: Any) -> dict[str, Any]:
    row = {
        "peer": "LitData", "layout": "chunks", "kind": "raw", "epoch": "cold", "latency_ms": 30, "gets": 20,
        "bytes_ratio": 1.1, "of_samples": 1_000, "error": None,
    }  # fmt: skip
    return {**row, **changes}


def test_epochs_are_scaled_by_samples() -> None:
    (access,) = peer_accesses({"rows": [a_row(), a_row(epoch="warm", gets=0, bytes_ratio=0)]}, WORKLOAD)
    assert (access.system, access.kind) == ("LitData, chunks", "measured")
    assert access.first_epoch == Requests(gets=200, bytes=1_100_000_000)
    assert access.later_epoch == access.opening == Requests()
    assert access.run(3) == access.first_epoch
    assert "1,000 samples measured at 30 ms" in access.note


def test_files_hold_fewer_samples_where_those_are_larger() -> None:
    (access,) = peer_accesses({"rows": [a_row()], "sample_bytes": 50_000}, WORKLOAD)
    assert access.first_epoch.gets == 400
    assert access.later_epoch == access.first_epoch
    assert "no warm epoch" in access.note


def test_objects_are_a_get_each_however_large() -> None:
    row = a_row(peer="torch", layout="objects", gets=1_003)
    (access,) = peer_accesses({"rows": [row], "sample_bytes": 50_000}, WORKLOAD)
    assert access.first_epoch.gets == 10_030


def test_who_failed_one_turn_counts() -> None:
    (access,) = peer_accesses({"rows": [a_row(error="one turn: IndexError", rounds=4)]}, WORKLOAD)
    assert access.first_epoch.gets == 200


def test_the_lowest_latency_counts() -> None:
    (access,) = peer_accesses({"rows": [a_row(latency_ms=130, gets=50), a_row(latency_ms=5, gets=10)]}, WORKLOAD)
    assert access.first_epoch.gets == 100


@pytest.mark.parametrize(
    "changes",
    [
        {"error": "ImportError"},
        {"error": "ImportError", "rounds": 0},
        {"kind": "decoded"},
        {"peer": "ours"},
        {"epoch": "warm"},
        {"gets": None},
        {"bytes_ratio": None},
        {"of_samples": None},
        {"of_samples": 0},
    ],
)
def test_what_does_not_count(changes: dict[str, Any]) -> None:
    assert peer_accesses({"rows": [a_row(**changes)]}, WORKLOAD) == []
