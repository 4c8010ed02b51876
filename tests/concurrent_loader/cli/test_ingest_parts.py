"""Imports by several processes and commands: --workers, --part, commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from concurrent_loader.cli.app import app
from concurrent_loader.storage.importers import ImageFolder
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.stores import open_store

SMALL = ("--shard-size", "4KiB")


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number in range(100):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        path = tmp_path / "images" / "ab"[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(pixels).save(path)
    return tmp_path / "images"


def share(images: Path, url: Path, which: str, *options: str) -> Any:
    return run("ingest", "image-folder", images, url, *SMALL, "--workers", 1, "--part", which, *options)


@pytest.mark.slow
def test_shares_and_their_commit(images: Path, tmp_path: Path) -> None:
    one = ingest(ImageFolder(open_store(images)), tmp_path / "one", shard_size="4KiB").manifest
    url = tmp_path / "shares"
    second = share(images, url, "2/2")
    assert second.exit_code == 0, second.output
    plan = second.stdout.split("--plan ")[1].strip()
    assert f"concurrent-loader commit {url}" in second.stdout
    early = run("commit", url)
    assert early.exit_code == 2
    assert "parts are not written" in early.stderr
    first = json.loads(share(images, url, "1/2", "--json").stdout)
    assert first["plan"] == plan
    assert 0 < first["num_written"] < first["num_parts"]
    listed = run("commit", url, "--list")
    assert listed.stdout == f"{plan}: {first['num_parts']} of {first['num_parts']} parts are written\n"
    assert json.loads(run("commit", url, "--list", "--json").stdout)[plan]["num_parts"] == first["num_parts"]
    done = run("commit", url, "--plan", plan, "--json")
    assert json.loads(done.stdout)["digest"] == one.digest
    assert run("commit", url, "--list").stdout == "there is no unfinished import\n"
    assert run("commit", url).exit_code == 2
    assert share(images, url, "1/2").exit_code == 2  # the dataset exists


@pytest.mark.slow
@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_a_share_that_is_none(images: Path, tmp_path: Path, text: str) -> None:
    result = share(images, tmp_path / "x", text)
    assert result.exit_code == 2
    assert "K/N" in result.stderr


def test_a_share_of_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "share_source.py").write_text("def rows():\n    yield {'a': 1}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run("ingest", "python", "share_source:rows", "out", "--part", "1/2")
    assert result.exit_code == 2
    assert "one stream" in result.stderr


@pytest.mark.slow
def test_resuming_and_beginning_again(images: Path, tmp_path: Path) -> None:
    url = tmp_path / "again"
    assert share(images, url, "1/2").exit_code == 0
    for option in ("--resume", "--no-resume"):
        result = run("ingest", "image-folder", images, url, *SMALL, "--workers", 1, "--overwrite", option, "--json")
        assert json.loads(result.stdout)["num_samples"] == 100


@pytest.mark.processes
def test_several_processes(images: Path, tmp_path: Path) -> None:
    one = ingest(ImageFolder(open_store(images)), tmp_path / "one", shard_size="4KiB").manifest
    result = run("ingest", "image-folder", images, tmp_path / "two", *SMALL, "--workers", 2, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["digest"] == one.digest
