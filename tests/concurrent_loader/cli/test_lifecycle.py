from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from concurrent_loader.cli.app import app
from concurrent_loader.storage import ShardWriter


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for numbers in (range(10), range(10, 15)):
        with ShardWriter(tmp_path / "photos", columns={"x": "int64"}, append=True) as writer:
            for number in numbers:
                writer.write({"x": number})
    return tmp_path / "photos"


class TestList:
    def test_text(self, data: Path) -> None:
        result = run("list", data.parent)
        assert result.exit_code == 0, result.stderr
        lines = result.stdout.splitlines()
        assert lines[0].endswith("/photos")
        assert lines[1].startswith("  15 samples, ")
        assert lines[1].endswith("x: int64")
        assert lines[2].startswith("  2 snapshots, ")

    def test_json(self, data: Path) -> None:
        facts = json.loads(run("list", data.parent, "--json").stdout)
        assert [(each["path"], each["snapshots"]) for each in facts["datasets"]] == [("photos", [1, 2])]

    def test_nothing(self, tmp_path: Path) -> None:
        assert "no dataset below" in run("list", tmp_path).stdout


class TestSnapshots:
    def test_text(self, data: Path) -> None:
        run("tag", data, "paper", "--snapshot", 1)
        lines = run("snapshots", data).stdout.splitlines()
        assert [line.split()[0] for line in lines[1:]] == ["1", "2"]
        assert lines[1].endswith("paper")

    def test_json(self, data: Path) -> None:
        facts = json.loads(run("snapshots", data, "--json").stdout)
        assert [each["num_samples"] for each in facts["snapshots"]] == [10, 15]


class TestDiff:
    def test_text(self, data: Path) -> None:
        result = run("diff", data, 1)
        assert "snapshot 1 to 2: 10 to 15 samples, by appending" in result.stdout
        assert "+ 5 samples in 1 shard" in result.stdout

    def test_by_tag_and_time(self, data: Path) -> None:
        run("tag", data, "paper", "--snapshot", 1)
        facts = json.loads(run("diff", data, "paper", "2999-01-01", "--json").stdout)
        assert facts["snapshots"] == [1, 2]

    def test_no_time(self, data: Path) -> None:
        result = run("diff", data, "2026-13-01")
        assert result.exit_code == 2
        assert "not a time" in result.stderr


class TestTag:
    @pytest.mark.slow
    def test_moves_and_deletes(self, data: Path) -> None:
        assert run("tag", data, "stable", "--snapshot", 1).stdout == "tag stable: snapshot 1\n"
        refused = run("tag", data, "stable")
        assert refused.exit_code == 2
        assert "--move" in refused.stderr
        assert run("tag", data, "stable", "--move").stdout == "tag stable: snapshot 2\n"
        assert run("verify", data, "--snapshot", "stable").exit_code == 0
        assert run("tag", data, "stable", "--delete").stdout == "tag stable deleted\n"
        assert run("verify", data, "--snapshot", "stable").exit_code == 2

    def test_delete_goes_alone(self, data: Path) -> None:
        assert run("tag", data, "stable", "--delete", "--move").exit_code == 2


class TestGc:
    def test_two_runs(self, data: Path) -> None:
        dry = run("gc", data, "--keep", 1, "--dry-run")
        assert dry.stdout.startswith("would delete 1 snapshot (1); 1 snapshot kept")
        result = run("gc", data, "--keep", 1)
        assert result.stdout.startswith("deleted 1 snapshot (1); 1 snapshot kept\ndeleted 0 objects, 0 B\n")
        refused = run("verify", data, "--snapshot", 1)
        assert refused.exit_code == 2
        assert "the newest is 2" in refused.stderr

    def test_json(self, data: Path) -> None:
        facts = json.loads(run("gc", data, "--older-than", "0s", "--json").stdout)
        assert facts["deleted_snapshots"] == [1]

    @pytest.mark.parametrize("grace", ["7", "x", "-1d", "1y"])
    def test_no_duration(self, data: Path, grace: str) -> None:
        result = run("gc", data, "--grace", grace)
        assert result.exit_code == 2
        assert "is not a duration such as 30d" in result.stderr


class TestCopy:
    @pytest.mark.slow
    def test_copies_and_continues(self, data: Path, tmp_path: Path) -> None:
        run("tag", data, "paper")
        result = run("copy", data, tmp_path / "copy")
        assert result.exit_code == 0, result.stderr
        assert "2 new snapshots, 2 in all; " in result.stdout
        assert run("verify", tmp_path / "copy", "--snapshot", "paper").exit_code == 0
        facts = json.loads(run("copy", data, tmp_path / "copy", "--json").stdout)
        assert (facts["num_objects"], facts["num_new_snapshots"]) == (0, 0)

    def test_another_dataset(self, data: Path, tmp_path: Path) -> None:
        with ShardWriter(tmp_path / "other", columns={"x": "int64"}) as writer:
            writer.write({"x": 1})
        result = run("copy", data, tmp_path / "other")
        assert result.exit_code == 2
        assert "another dataset" in result.stderr
