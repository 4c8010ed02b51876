from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from concurrent_loader.cli.app import app
from concurrent_loader.storage import ShardWriter

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache that holds a data set's two or three shards, and parts of none."""
    from concurrent_loader import ShardDataset

    url = str(tmp_path / "data")
    with ShardWriter(url, columns={"data": "bytes"}, shard_size="4KiB") as writer:
        for number in range(8):
            writer.write({"data": bytes([number]) * 1200})
    with ShardDataset(url, cache_dir=tmp_path / "cache") as dataset:

        async def read() -> None:
            for entry in dataset.manifest.shards:
                await dataset.reader.cache.acquire(entry)
                dataset.reader.cache.release(entry)

        dataset.loop.run(read())
    return tmp_path / "cache"


def run(*arguments: object, code: int = 0, typed: str | None = None) -> Result:
    result = CliRunner().invoke(app, ["cache", *map(str, arguments)], input=typed)
    assert result.exit_code == code, result.output
    return result


def test_info(folder: Path) -> None:
    facts = json.loads(run("info", folder, "--json").stdout)
    assert facts["num_shards"] == len(list(folder.iterdir()))
    assert facts["num_bytes"] == facts["shard_bytes"] > 9000
    assert "complete shards" in run("info", folder).stdout


def test_gc_shrinks(folder: Path) -> None:
    assert "deleted 0 files" in run("gc", folder).stdout
    out = run("gc", folder, "--bytes", "5KiB").stdout
    assert " left" in out
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 5 * 1024
    assert run("gc", folder, "--bytes", "many", code=2).stderr.startswith("error: ")


def test_clear_asks_first(folder: Path) -> None:
    (folder / "mine.txt").write_text("mine")
    run("clear", folder, typed="n\n", code=1)
    assert len(list(folder.iterdir())) > 1
    assert "Delete" in run("clear", folder, typed="y\n").stdout
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    run("clear", folder, "--yes")


@pytest.mark.slow
def test_verify_finds_and_removes_damage(folder: Path) -> None:
    assert "all digests agree" in run("verify", folder).stdout
    damaged = min(folder.iterdir())
    with damaged.open("r+b") as file:
        os.pwrite(file.fileno(), b"?", 100)
    report = json.loads(run("verify", folder, "--json", code=1).stdout)
    assert not report["ok"]
    assert report["problems"][0].startswith(damaged.name)
    assert "1 deleted" in run("verify", folder, "--fix", code=1).stdout
    assert not damaged.exists()
    run("verify", folder)


@pytest.mark.parametrize("command", ["info", "gc", "clear", "verify"])
def test_no_such_folder_is_one_line_and_makes_none(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "nowhere", code=2)
    assert result.stderr.startswith("error: the folder does not exist")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()
