from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from concurrent_loader.cli.app import app
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.importers import FORMATS
from concurrent_loader.storage.importers.optional_library import import_library


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["ingest", *map(str, arguments)])


def test_a_file_with_options(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"], "c": [b"1", b"2"]}), tmp_path / "x.parquet")
    arguments = ("parquet", tmp_path / "x.parquet", tmp_path / "out", "--column", "a=int32", "--drop", "b")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("2 samples, ")
    result = run(*arguments, "--append", "--json")
    assert json.loads(result.stdout)["repeats"] is True
    assert "nothing was added" in run(*arguments, "--append").stdout


def test_a_bad_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 nothing")
    result = run("parquet", tmp_path / "x.parquet", tmp_path / "out")
    assert result.exit_code == 1
    assert "x.parquet" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert run("parquet", tmp_path / "none.parquet", tmp_path / "out").exit_code == 2
    assert run("tar", "s3://user:password@bucket/x.tar", tmp_path / "out").exit_code == 2


def test_a_function_with_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli_source.py").write_text("def rows(a, b):\n    yield {'a': int(a), 'b': b}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    result = run("python", "cli_source:rows", "out", "--arg", "a=5", "--arg", "b=x", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["num_samples"] == 1


def test_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli_tokens.py").write_text("def encode(text):\n    return list(text.encode())\n")
    (tmp_path / "x.txt").write_text("one\ntwo\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    result = run("text", "x.txt", "out", "--per", "line", "--tokenizer", "cli_tokens:encode", "--workers", 1)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("2 samples, ")


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_every_format_has_a_command_with_its_options(row: Any) -> None:
    result = run(row.name, "--help")
    assert result.exit_code == 0
    for option in row.options:
        assert f"--{option.name.replace('_', '-')}" in result.stdout


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"needs no_such_library.*pip install '\.\[hdf5\]'"):
        import_library("no_such_library", extra="hdf5")
    monkeypatch.setitem(sys.modules, "json.broken", None)
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        import_library("json.broken", extra="x")


@pytest.mark.processes
def test_the_command_line_starts_without_the_libraries() -> None:
    program = (
        "import sys, concurrent_loader.cli.app\n"
        "print([name for name in ('h5py', 'lmdb', 'numpy', 'pyarrow', 'torch', 'zarr') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "[]\n"
