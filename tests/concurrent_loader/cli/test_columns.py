"""`concurrent-loader columns …`: files, arguments, output and exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from concurrent_loader import ShardDataset
from concurrent_loader.cli.app import app
from concurrent_loader.storage import ShardWriter

NUM = 5


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    with ShardWriter(tmp_path / "in", columns={"name": "str", "number": "int64"}) as writer:
        for number in range(NUM):
            writer.write({"name": f"n{number}", "number": number})
    return tmp_path / "in"


def values(dataset: Path, name: str) -> list[Any]:
    with ShardDataset(dataset) as opened:
        return [each.tolist() if hasattr(each, "tolist") else each for each in opened.column(name)]


def test_by_position(dataset: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.arange(NUM * 2, dtype=np.float32).reshape(NUM, 2))
    result = run("columns", "add", dataset, "vector", "float32[2]", tmp_path / "v.npy")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "snapshot 2: name: str, number: int64, vector: float32[2]\n"
    assert values(dataset, "vector")[3] == [6.0, 7.0]
    (tmp_path / "v.jsonl").write_text("".join(f"{json.dumps([n])}\n" for n in range(NUM)))
    assert run("columns", "add", dataset, "tags", "json", tmp_path / "v.jsonl").exit_code == 0
    assert values(dataset, "tags") == [[n] for n in range(NUM)]


@pytest.mark.parametrize(
    ("kind", "texts", "expected"),
    [
        ("int32", ["1", "-2", "3", "4", "5"], [1, -2, 3, 4, 5]),
        ("float64", ["1", "0.5", "nan", "1e3", "-0"], [1, 0.5, None, 1000, 0]),
        ("bool", ["true", "False", "1", "0", "TRUE"], [True, False, True, False, True]),
        ("str", ["a", "", "c,d", "é", "1"], ["a", "", "c,d", "é", "1"]),
        ("json", ["1", "null", "[2]", "{}", '"x"'], [1, None, [2], {}, "x"]),
        ("int16[2]", ["[1,2]"] * 5, [[1, 2]] * 5),
        ("int32?", ["1", "", "3", "4", ""], [1, None, 3, 4, None]),
        ("str?", ["a", "", "c", "d", "e"], ["a", None, "c", "d", "e"]),
    ],
)
def test_texts_of_a_csv_file(dataset: Path, tmp_path: Path, kind: str, texts: list[str], expected: list[Any]) -> None:
    lines = ['"{}",{}'.format(text.replace('"', '""'), f"n{n}") for n, text in enumerate(texts)]
    (tmp_path / "v.csv").write_text("\n".join(["value,who", *reversed(lines)]) + "\n", encoding="utf-8")
    options = ("--by", "name", "--key", "who", "--field", "value", "--json")
    result = run("columns", "add", dataset, "x", kind, tmp_path / "v.csv", *options)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"snapshot": 2, "columns": {"name": "str", "number": "int64", "x": kind}}
    got = values(dataset, "x")
    assert [each for each, want in zip(got, expected, strict=True) if want is not None or kind == "json"] == [
        each for each in expected if each is not None or kind == "json"
    ]


@pytest.mark.slow
def test_a_number_is_a_key(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("number,x\n" + "".join(f"{n},{n * 2}\n" for n in range(NUM + 3)))
    assert run("columns", "add", dataset, "x", "int64", tmp_path / "v.csv", "--by", "number").exit_code == 0
    assert values(dataset, "x") == [0, 2, 4, 6, 8]
    (tmp_path / "v.csv").write_text("number,y\n3,9\n")
    options = ("--by", "number", "--default")
    assert run("columns", "add", dataset, "y", "int64", tmp_path / "v.csv", *options, "x").exit_code == 2
    assert run("columns", "add", dataset, "y", "int64", tmp_path / "v.csv", *options, "-1").exit_code == 0
    assert values(dataset, "y") == [-1, -1, -1, 9, -1]


def test_a_parquet_file(dataset: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"name": [f"n{n}" for n in range(NUM)], "x": [[n, n] for n in range(NUM)]})
    parquet.write_table(table, tmp_path / "v.parquet")
    assert run("columns", "add", dataset, "x", "int64[2]", tmp_path / "v.parquet", "--by", "name").exit_code == 0
    assert values(dataset, "x")[4] == [4, 4]
    result = run("columns", "add", dataset, "y", "int64", tmp_path / "v.parquet")
    assert (result.exit_code, "no such field" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("v.csv", "x\n1\n2\n", [], "one value per sample"),
        ("v.csv", "x\n" + "one\n" * 5, [], "row 1 of the file is not a value"),
        ("v.csv", "y\n1\n", [], "no such field"),
        ("v.csv", "name,x\nn0,1\nn0,2\n", ["--by", "name"], "occurs twice"),
        ("v.csv", "name,x\nn0,1\n", ["--by", "name"], "no value for a sample"),
        ("v.csv", "name,x\nn0,1\nn1\n", ["--by", "name"], "row 2 of the file has no such field"),
        ("v.csv", "name,x\nn0,1\n", ["--by", "who"], "no such column"),
        ("v.csv", "name,x\nn0,1\n", ["--key", "name"], "--key and --default need --by"),
        ("v.jsonl", "{", [], "not JSON"),
        ("v.txt", "1", [], ".npy, .csv, .jsonl and .parquet"),
        ("v.npy", "1", [], "cannot be read"),
        ("v.npy", "1", ["--by", "name"], "no keys"),
    ],
)
def test_files_that_are_wrong(
    dataset: Path, tmp_path: Path, name: str, text: str, options: list[str], message: str
) -> None:
    (tmp_path / name).write_text(text)
    result = run("columns", "add", dataset, "x", "int64", tmp_path / name, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (dataset / "manifests" / "0000000002.clm").exists()


@pytest.mark.slow
def test_info_shows_what_was_added(dataset: Path, tmp_path: Path) -> None:
    assert "column set" not in run("info", dataset).stdout
    np.save(tmp_path / "v.npy", np.arange(NUM))
    assert run("columns", "add", dataset, "x", "int64", tmp_path / "v.npy").exit_code == 0
    assert "added      1 column set" in run("info", dataset).stdout
    facts = json.loads(run("info", dataset, "--json").stdout)
    assert (facts["num_column_sets"], facts["columns"]["x"]) == (1, "int64")
    assert facts["column_set_bytes"] > 0


@pytest.mark.slow
def test_rename_and_drop(dataset: Path) -> None:
    assert run("columns", "rename", dataset, "number", "label").stdout == "snapshot 2: name: str, label: int64\n"
    again = run("columns", "drop", dataset, "name", "--token", "one", "--json")
    assert json.loads(again.stdout) == {"snapshot": 3, "columns": {"label": "int64"}}
    assert json.loads(run("columns", "drop", dataset, "name", "--token", "one", "--json").stdout)["snapshot"] == 3
    result = run("columns", "drop", dataset, "label")
    assert (result.exit_code, result.stderr.startswith("error: these are the last columns")) == (2, True)
    assert run("info", dataset).exit_code == 0
    assert run("verify", dataset).exit_code == 0
