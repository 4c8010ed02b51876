from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import cost
from benchmarks.access import PRICES
from benchmarks.cost import main
from concurrent_loader.storage.testing import LocalS3

COUNTS = {"gets", "heads", "lists", "bytes"}


@pytest.mark.s3
def test_quick_measures_ours_and_computes_the_others(
    s3_server: LocalS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def running(**_: object) -> Iterator[LocalS3]:
        yield s3_server

    monkeypatch.setattr(cost, "local_s3", running)
    arguments = ["--quick", "--samples", "100000", "--epochs", "3"]
    peer = {"peer": "Somebody", "layout": "tars", "kind": "raw", "latency_ms": 5, "of_samples": 1_000}
    epochs = [{"epoch": "cold", "gets": 7, "bytes_ratio": 1.5}, {"epoch": "warm", "gets": 0, "bytes_ratio": 0.0}]
    (tmp_path / "peers.json").write_text(json.dumps({"rows": [{**peer, **epoch} for epoch in epochs]}))
    arguments += ["--peers", str(tmp_path / "peers.json")]
    assert main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    assert "check them" in capsys.readouterr().out
    report = json.loads((tmp_path / "out.json").read_text())
    assert set(report) == {
        "workload", "measured", "rows", "prices_as_of", "prices", "chunk_sizes", "server", "machine", "versions",
        "took_s", "other_programs_share",
    }  # fmt: skip
    assert report["workload"] == {"num_samples": 100_000, "sample_bytes": 110_000, "num_epochs": 3}
    assert report["chunk_sizes"]["mds_bytes"] == 64 << 20
    measured = {one["system"]: one for one in report["measured"]}
    shards, kept, objects, kept_objects = measured.values()
    for one in measured.values():
        assert [set(one[part]) for part in ("opening", "first_epoch", "later_epoch")] == [COUNTS] * 3
    assert shards["opening"]["gets"] == shards["opening"]["lists"] == 1
    assert shards["first_epoch"]["gets"] == shards["later_epoch"]["gets"] == kept["first_epoch"]["gets"] == 2
    assert kept["later_epoch"] == kept_objects["later_epoch"] == {"gets": 0, "heads": 0, "lists": 0, "bytes": 0}
    assert objects["first_epoch"]["gets"] == objects["later_epoch"]["gets"] == objects["num_samples"] == 32
    assert objects["first_epoch"]["bytes"] == 32 * 110_000
    rows = {row["system"]: row for row in report["rows"]}
    assert set(measured) < set(rows)
    assert {row["kind"] for row in rows.values()} == {"measured", "computed"}
    for row in rows.values():
        assert set(row) == {"system", "kind", "note", "opening", "first_epoch", "later_epoch", "run", "usd"}
        assert set(row["usd"]) == {price.store for price in PRICES}
        assert row["usd"]["S3 Standard, same region"]["run"] > 0
    assert rows["Somebody, tars"]["kind"] == "measured"
    assert rows["Somebody, tars"]["run"]["gets"] == 700
    assert rows["ours, objects, no cache"]["run"]["gets"] == rows["torch, objects"]["run"]["gets"] == 300_000
