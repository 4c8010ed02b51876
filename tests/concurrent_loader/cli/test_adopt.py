from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from concurrent_loader import ShardDataset
from concurrent_loader.cli.app import app

GOLDEN = Path(__file__).parents[2] / "storage" / "adopt" / "golden"


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "value").write_bytes(b"\xff\xd8\xff" + bytes(100_000))
    (tmp_path / "source").mkdir()
    with tarfile.open(tmp_path / "source" / "a.tar", "w") as archive:
        for row in range(5):
            archive.add(tmp_path / "value", f"{row}.jpg")
    return tmp_path / "source"


def test_a_dry_run_prints_both_ways(source: Path, tmp_path: Path) -> None:
    result = run("adopt", "webdataset", source, tmp_path / "index", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "1 GET request ($0.0000), about 0.0 min on one core" in result.stdout
    assert "with --headers-only: about " in result.stdout
    facts = json.loads(run("adopt", "webdataset", source, tmp_path / "index", "--dry-run", "--json").stdout)
    assert facts["headers_bytes"] < facts["num_bytes"] / 2
    assert facts["headers_dollars"] == pytest.approx(0.4e-6 * facts["headers_requests"])
    assert not (tmp_path / "index").exists()


def test_headers_only_says_that_bytes_are_not_verified(source: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert "the samples have no digests" in run("adopt", "webdataset", source, index, "--headers-only").stdout
    assert "not verified by digest: the payload of 1 virtual shard" in run("verify", index).stdout
    assert "digests    none for the payload of 1 shard" in run("info", index).stdout
    assert json.loads(run("verify", index, "--json").stdout)["num_undigested"] == 1
    with (source / "a.tar").open("r+b") as file:
        file.seek(50_000)
        file.write(b"!")
    damaged = run("verify", index)
    assert damaged.exit_code == 1
    assert "replaced" in damaged.stdout
    assert run("adopt", "parquet", source, index, "--headers-only").exit_code == 2


def test_block_size_cuts_tokens(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "litdata" / "tokens", tmp_path / "source")
    result = run("adopt", "litdata", tmp_path / "source", tmp_path / "index", "--block-size", "4")
    assert result.exit_code == 0, result.output
    with ShardDataset(tmp_path / "index") as dataset:
        assert dataset.manifest.schema["tokens"].endswith("[4]")
    assert run("adopt", "mds", tmp_path / "source", tmp_path / "other", "--block-size", "4").exit_code == 2
