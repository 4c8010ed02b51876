"""`concurrent-loader delete …` and `compact …`: arguments, output and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from concurrent_loader import ShardDataset
from concurrent_loader.cli.app import app
from concurrent_loader.cli.delete import parse_ids
from concurrent_loader.storage import ShardWriter


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    with ShardWriter(tmp_path / "in", columns={"text": "str", "number": "int64"}, shard_size="4KiB") as writer:
        for number in range(300):
            writer.write({"text": f"text {number}", "number": number})
    return tmp_path / "in"


def numbers(dataset: Path) -> list[int]:
    with ShardDataset(dataset) as opened:
        return [int(number) for number in opened.column("number")]


def test_delete_by_a_condition(dataset: Path) -> None:
    result = run("delete", dataset, "--where", "number < 290 and text != 'text 7'", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "289 samples would be deleted from" in result.stdout
    assert len(numbers(dataset)) == 300
    result = run("delete", dataset, "--where", "number < 290 and text != 'text 7'")
    assert f"289 samples deleted, now file://{dataset} snapshot 2; 11 samples left" in result.stdout
    assert numbers(dataset) == [7, *range(290, 300)]


def test_delete_by_numbers(dataset: Path, tmp_path: Path) -> None:
    assert json.loads(run("delete", dataset, "--ids", "0, 2-4", "--json").stdout)["num_deleted"] == 4
    (tmp_path / "ids.txt").write_text("1\n5-6\n")
    assert run("delete", dataset, "--ids", f"@{tmp_path / 'ids.txt'}", "--snapshot", 1).exit_code == 0
    assert numbers(dataset) == list(range(7, 300))


@pytest.mark.slow
def test_info_says_how_many_are_deleted(dataset: Path) -> None:
    assert "deleted" not in run("info", dataset).stdout
    run("delete", dataset, "--ids", "0-9")
    assert "290; 10 more are deleted, but stored" in run("info", dataset).stdout
    facts = json.loads(run("info", dataset, "--json").stdout)
    assert (facts["num_samples"], facts["num_deleted"]) == (290, 10)
    result = run("verify", dataset)
    assert "all digests agree" in result.stdout
    assert "290 samples" in result.stdout


@pytest.mark.slow
def test_compact(dataset: Path) -> None:
    result = run("compact", dataset)
    assert "snapshot 1: no shard has a live share below 0.5" in result.stdout
    run("delete", dataset, "--where", "number < 100")
    result = run("compact", dataset, "--below", 1)
    assert result.exit_code == 0, result.stderr
    assert "without 100 deleted samples" in result.stdout
    assert "200 samples" in result.stdout
    assert numbers(dataset) == list(range(100, 300))
    assert json.loads(run("compact", dataset, "--json").stdout)["num_rewritten"] == 0


@pytest.mark.parametrize(
    "options", [[], ["--where", "number"], ["--ids", "400"], ["--where", "number == 1", "--ids", "1"]]
)
def test_errors_are_one_line(dataset: Path, options: list[str]) -> None:
    result = run("delete", dataset, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


def test_numbers_and_ranges() -> None:
    assert parse_ids("1, 3-5,9") == [1, 3, 4, 5, 9]
    assert parse_ids("5-4") == []
    for text in ("", "1,,2", "-1", "a", "1-", "٣", "0-99999999999"):
        with pytest.raises(typer.BadParameter):
            parse_ids(text)


@pytest.mark.slow
def test_purge(tmp_path: Path) -> None:
    url = tmp_path / "people"
    with ShardWriter(url, columns={"face": "bytes"}) as writer:
        for name in (b"Ada Lovelace", b"Bob", b"Ada Lovelace"):
            writer.write({"face": name})
    assert "no snapshot stores a deleted sample" in run("purge", url, "--yes").stdout
    run("delete", url, "--ids", "0")
    result = run("purge", url)
    assert result.exit_code == 0
    assert "would remove the bytes of 1 sample" in result.stdout
    assert "pass --yes to do it" in result.stdout
    result = run("purge", url, "--yes")
    assert result.exit_code == 1
    assert "snapshot 3, sample 1, column face" in result.stdout
    assert "NOT proved" in result.stdout
    run("delete", url, "--ids", "1")
    result = run("purge", url, "--yes")
    assert result.exit_code == 0
    assert "proved: no value of a removed sample is left" in result.stdout
    assert not [file for file in url.rglob("*") if file.is_file() and b"Lovelace" in file.read_bytes()]
    result = run("info", url, "--snapshot", 1)
    assert result.exit_code == 2
    assert "was purged" in result.stderr
    run("delete", url, "--ids", "0")
    facts = json.loads(run("purge", url, "--yes", "--json").stdout)
    assert facts["is_proved"]
    assert facts["num_rows"] == 1
