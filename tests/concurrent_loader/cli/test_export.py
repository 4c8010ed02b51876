"""`concurrent-loader export …`: arguments, output and exit status."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from concurrent_loader.cli.app import app
from concurrent_loader.cli.export import Format
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.exporters.registry import FORMAT_NAMES


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    for number in range(2):
        columns = {"text": "str", "number": "int64"}
        with ShardWriter(tmp_path / "in", columns=columns, append=True) as writer:
            writer.write({"text": f"text {number}", "number": number})
    return tmp_path / "in"


def members(folder: Path) -> dict[str, bytes]:
    with tarfile.open(folder / "shard-000000.tar") as tar:
        return {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]


def test_it_says_what_was_written(dataset, tmp_path):
    result = run("export", dataset, "webdataset", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert "2 samples of snapshot 2 in 1 file" in result.stdout
    assert "MB/s" in result.stdout
    assert f"file://{tmp_path / 'out'} (webdataset)" in result.stdout
    assert members(tmp_path / "out")["000001.text.txt"] == b"text 1"
    again = run("export", dataset, "webdataset", tmp_path / "out")
    assert again.exit_code == 0
    assert "nothing was written" in again.stdout


def test_options_choose_snapshot_columns_and_keys(dataset, tmp_path):
    options = ("--snapshot", 1, "--columns", "number=n, text", "--key-column", "text")
    result = run("export", dataset, "webdataset", tmp_path / "out", *options, "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert (facts["snapshot"], facts["num_samples"], facts["format"]) == (1, 1, "webdataset")
    assert members(tmp_path / "out") == {"text 0.n.json": b"0", "text 0.text.txt": b"text 0"}


@pytest.mark.parametrize("columns", ["", "text=", "=x", "text,text"])
def test_columns_of_another_form_are_refused(dataset, tmp_path, columns):
    result = run("export", dataset, "mds", tmp_path / "out", "--columns", columns)
    assert result.exit_code == 2
    assert "NAME=NEWNAME" in result.stderr


def test_errors_are_one_line(dataset, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other").touch()
    result = run("export", dataset, "parquet", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: the destination is not empty; export to a new folder")
    assert run("export", dataset, "zip", tmp_path / "out").exit_code == 2
    assert run("export", tmp_path / "nothing", "mds", tmp_path / "new").exit_code == 2


def test_the_command_has_every_format():
    assert tuple(each.value for each in Format) == FORMAT_NAMES
