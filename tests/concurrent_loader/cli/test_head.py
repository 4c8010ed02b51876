"""`concurrent-loader head`, `show` and `info`: samples, classes and facts as text, safe to print in any terminal."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner, Result

from concurrent_loader.cli.app import app
from concurrent_loader.cli.info_text import format_runs, info_lines
from concurrent_loader.storage import ShardWriter

HOSTILE = "\x1b[2J\x9b\u202e<b>"


def run(*args: object, width: int = 80) -> Result:
    return CliRunner(env={"COLUMNS": str(width)}).invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data") / "d"
    columns = {
        "image": "jpeg",
        "label": "int64",
        "caption": "str",
        "info": "json",
        "points": "float32[...]",
        "ok": "bool",
    }
    metadata = {
        "classes": {"label": ["cat", "犬", HOSTILE, *map(str, range(30))], "parts": ["head", "tail"]},
        "last_import": {"num_samples": 40, "source_bytes": 5 << 20, "skipped": [{"name": "x"}], "files": ["a"] * 9},
        "empty": {},
        "flag": True,
    }
    with ShardWriter(str(folder), columns=columns, metadata=metadata, shard_size="8KiB") as writer:
        for number in range(40):
            writer.write(
                {
                    "image": b"\xff\xd8\xff" + bytes(100), "label": number % 25, "ok": number % 2 == 0,
                    "caption": f"{HOSTILE} {'word ' * 40}" if number == 3 else "two\nlines", "info": {"k": [number]},
                    "points": np.arange(number, dtype=np.float32),
                }
            )  # fmt: skip
    return str(folder)


def all_printable(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


class TestHead:
    def test_shows_the_first_samples(self, url: str) -> None:
        result = run("head", url, "-n", 5)
        assert result.exit_code == 0, result.stderr
        out = result.stdout
        assert out.count("\nsample ") + 1 == 5
        for text in (
            "  label    1 (犬)",
            r"  caption  two\nlines",
            "  points   float32 (2): 0.0, 1.0",
            '  info     {"k": [4]}',
        ):
            assert text in out
        assert out.endswith("… 35 more of 40 samples\n")
        assert all_printable(out)

    @pytest.mark.parametrize("width", [40, 60, 200])
    def test_fits_the_terminal(self, url: str, width: int) -> None:
        lines = run("head", url, width=width).stdout.splitlines()
        assert max(map(cell_len, lines)) <= width
        assert any(line.endswith("…") for line in lines) or width == 200

    def test_starts_anywhere_and_shows_some_columns(self, url: str) -> None:
        out = run("head", url, "--start", 38, "--column", "label").stdout
        assert out.splitlines() == ["sample 38", "  label  13 (10)", "sample 39", "  label  14 (11)", "40 samples"]

    def test_names_what_is_not_there(self, url: str) -> None:
        result = run("head", url, "--start", 40)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "40 samples" in result.stderr
        result = run("head", url, "--column", "nothing")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "no such column" in result.stderr


class TestShow:
    def test_shows_all_of_a_sample(self, url: str) -> None:
        result = run("show", url, 3)
        assert result.exit_code == 0, result.stderr
        lines = result.stdout.splitlines()
        assert lines[0] == "sample 3"
        assert "label: int64" in lines
        assert "  3 (0)" in lines
        assert [line for line in lines if line.count("word ") == 40]
        assert '    "k": [' in lines
        assert all_printable(result.stdout)

    def test_a_sample_that_does_not_exist(self, url: str) -> None:
        result = run("show", url, 40)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "a dataset of 40 samples" in result.stderr.replace("\n", " ").replace("│", "")


class TestInfo:
    @pytest.mark.parametrize("width", [60, 100])
    def test_fits_the_terminal_without_json(self, url: str, width: int) -> None:
        out = run("info", url, width=width).stdout
        assert all_printable(out)
        lines = out.splitlines()
        assert max(cell_len(line) for line in lines if url not in line) <= width
        for text in ("{", '"'):
            assert text not in out
        for text in (
            "label: 25, 1 to 2 samples each", "  1 (犬)", "5.0%", "  … 5 more", "parts: 2 named", "20 of 40 true",
            "  last_import.source_bytes: 5.0 MiB", "  last_import.skipped: 1 entry",
            "  last_import.files: a, a, a, a, a, … 4 more",
            "  empty: none", "  flag: yes",
        ):  # fmt: skip
            assert text in out, text

    def test_counts_are_left_out_when_asked(self, url: str) -> None:
        facts = json.loads(run("info", url, "--json").stdout)
        assert [each["num_samples"] for each in facts["class_counts"]["label"]] == [2] * 15 + [1] * 10
        assert json.loads(run("info", url, "--json", "--no-counts").stdout)["class_counts"] == {}
        assert "label: 33 named" in run("info", url, "--no-counts").stdout

    def test_an_empty_dataset(self) -> None:
        url = f"memory://{uuid4().hex}"
        with ShardWriter(url, columns={"label": "int64"}, allow_empty=True):
            pass
        result = run("info", url)
        assert result.exit_code == 0, result.stderr
        assert "samples    0" in result.stdout

    def test_much_metadata_is_cut(self, tmp_path: Path) -> None:
        facts = json.loads(run("info", self._with_metadata(tmp_path), "--json").stdout)
        lines = info_lines(facts, 60)
        assert "  … 960 more; --json has all" in lines
        assert len(lines) < 60

    def _with_metadata(self, folder: Path) -> Path:
        with ShardWriter(
            str(folder / "m"), columns={"x": "int64"}, metadata={f"k{i}": i for i in range(1000)}
        ) as writer:
            writer.write({"x": 1})
        return folder / "m"


def test_runs_of_snapshots() -> None:
    assert format_runs([1, 2, 3, 7]) == "1-3, 7"
