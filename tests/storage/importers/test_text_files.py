from __future__ import annotations

import asyncio
import bz2
import gzip
import json
import lzma
import pickle
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from concurrent_loader.storage.errors import ConfigurationError, CorruptData, NotFound
from concurrent_loader.storage.importers import TextFiles
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.stores import open_store

pytestmark = pytest.mark.usefixtures("no_leaks")

DOCUMENTS = ["one", "é" * 100_000, "two\nlines", ""]
LINES = "".join(json.dumps({"id": at, "text": text, "meta": {}}) + "\n" for at, text in enumerate(DOCUMENTS)).encode()
COMPRESS: dict[str, Any] = {
    "": bytes, ".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
}  # fmt: skip


def texts(url: str, samples_of: Any, column: str = "text") -> list[Any]:
    return [sample[column] for sample in samples_of(url)]


def to_bytes(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("end", COMPRESS)
def test_json_lines_from_any_store(url: str, samples_of: Any, end: str) -> None:
    source = f"memory://text-{uuid4()}"
    data = COMPRESS[end](b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n") + b"\n" + LINES.rstrip())
    asyncio.run(open_store(source).put(f"in/x.jsonl{end}", data))
    report = ingest(TextFiles(f"{source}/in"), url)
    assert report.manifest.schema == {"text": "str"}
    assert texts(url, samples_of) == DOCUMENTS * 2


@pytest.mark.parametrize(
    ("per", "expected"),
    [
        ("file", ["a\n\nb\nc\n\n\n d", "x"]), ("line", ["a", "b", "c", " d", "x"]),
        ("paragraph", ["a", "b\nc", " d", "x"]),
    ],
)  # fmt: skip
def test_plain_text(tmp_path: Path, url: str, samples_of: Any, per: str, expected: list[str]) -> None:
    (tmp_path / "1.txt").write_bytes(b"a\r\n\r\nb\r\nc\n\n\n d\n")
    (tmp_path / "2.txt.gz").write_bytes(gzip.compress(b"x"))
    (tmp_path / "3.txt").write_bytes(b"")
    (tmp_path / "other.csv").write_bytes(b"y")
    report = ingest(TextFiles(tmp_path, per=per), url)
    assert texts(url, samples_of) == expected
    assert report.num_ignored == 1


def test_parquet_and_a_file_of_any_name(tmp_path: Path, url: str, samples_of: Any) -> None:
    pq.write_table(pa.table({"body": ["a", None, "c"], "n": [1, 2, 3]}), tmp_path / "x.parquet")
    report = ingest(TextFiles(tmp_path, field="body"), url, on_error="skip")
    assert texts(url, samples_of, "body") == ["a", "c"]
    assert [each.name for each in report.skipped] == ["x.parquet: row 1"]
    with pytest.raises(CorruptData, match=r"no column 'text'"):
        ingest(TextFiles(tmp_path), url, overwrite=True)
    (tmp_path / "LICENSE").write_text("free")
    ingest(TextFiles(tmp_path / "LICENSE"), url, overwrite=True)
    assert texts(url, samples_of) == ["free"]


def test_tokens_in_any_integer_type(tmp_path: Path, url: str, samples_of: Any) -> None:
    (tmp_path / "x.jsonl").write_bytes(LINES)
    report = ingest(TextFiles(tmp_path, tokenizer=to_bytes, columns={"tokens": "uint16[...]"}), url)
    assert report.manifest.schema == {"tokens": "uint16[...]"}
    assert [tokens.tolist() for tokens in texts(url, samples_of, "tokens")] == [to_bytes(text) for text in DOCUMENTS]
    report = ingest(
        TextFiles(tmp_path, tokenizer=lambda text: np.array([len(text) * 2])), url, overwrite=True, on_error="skip"
    )
    assert [tokens.tolist() for tokens in texts(url, samples_of, "tokens")] == [[2 * len(text)] for text in DOCUMENTS]
    for tokenize, reason in {
        (lambda text: [len(text)]): "do not fit into int8",
        (lambda text: [[1]]): "must return a row of integers",
        (lambda text: [0.5]): "must return a row of integers",
    }.items():
        with pytest.raises(CorruptData, match=reason):
            ingest(TextFiles(tmp_path, tokenizer=tokenize, columns={"tokens": "int8[...]"}), url, overwrite=True)
    with pytest.raises(ConfigurationError, match="a type such as"):
        ingest(TextFiles(tmp_path, tokenizer=to_bytes, columns={"tokens": "json"}), url, overwrite=True)


def test_a_tokenizer_by_name_is_found_again_after_pickling(
    tmp_path: Path, url: str, samples_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_tokens.py").write_text("split = lambda text: [len(word) for word in text.split()]\n")
    (tmp_path / "x.txt").write_text("a bcd")
    monkeypatch.chdir(tmp_path)
    importer = pickle.loads(pickle.dumps(TextFiles(tmp_path, tokenizer="my_tokens:split")))
    report = ingest(importer, url)
    assert texts(url, samples_of, "tokens")[0].tolist() == [1, 3]
    assert report.manifest.metadata["tokenizer"] == "my_tokens:split"
    assert ingest(TextFiles(tmp_path, tokenizer="my_tokens:split"), url, append=True).repeats
    assert not ingest(TextFiles(tmp_path, tokenizer=to_bytes), url, append=True).repeats
    with pytest.raises(ConfigurationError, match="no such function"):
        TextFiles(tmp_path, tokenizer="my_tokens:none")


def test_bad_lines_are_named(tmp_path: Path, url: str, samples_of: Any) -> None:
    bad = [b'{"text": 3}', b'{"other": ""}', b"{", b'{"text": "\xff"}', b'["text"]']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([LINES.splitlines()[0], *bad, LINES.splitlines()[2]]))
    (tmp_path / "b.txt").write_bytes(b"fine\n\nalso\n\xfe\n\nend")
    report = ingest(TextFiles(tmp_path, per="paragraph"), url, on_error="skip")
    assert [each.name for each in report.skipped] == [*(f"a.jsonl: line {at}" for at in range(2, 7)), "b.txt: line 4"]
    assert all("'text'" in each.reason for each in report.skipped[:5])
    assert "not UTF-8 text: b'\\xfe'" in report.skipped[5].reason
    assert texts(url, samples_of) == ["one", "two\nlines", "fine", "end"]
    with pytest.raises(CorruptData, match=r"not a JSON object with the text 'text'.*a\.jsonl: line 2"):
        ingest(TextFiles(tmp_path), url, overwrite=True)


@pytest.mark.parametrize("end", [".gz", ".zst"])
def test_damage_is_reported_with_the_last_line(tmp_path: Path, url: str, samples_of: Any, end: str) -> None:
    lines = b"".join(
        json.dumps({"text": np.random.default_rng(at).bytes(500).hex()}).encode() + b"\n" for at in range(2000)
    )
    (tmp_path / f"a.jsonl{end}").write_bytes(COMPRESS[end](lines)[:-5000])
    (tmp_path / "b.jsonl").write_bytes(LINES)
    report = ingest(TextFiles(tmp_path), url, on_error="skip")
    (problem,) = report.skipped
    assert problem.name == f"a.jsonl{end}"
    assert f"documents after line {report.num_samples - len(DOCUMENTS)} are missing" in problem.reason
    assert report.num_samples > 1000
    assert texts(url, samples_of)[-4:] == DOCUMENTS


def test_a_failing_tokenizer_is_raised_with_the_document(tmp_path: Path, url: str) -> None:
    (tmp_path / "a.txt").write_text("x\ny")

    def fail(text: str) -> list[int]:
        return [{"x": 1}[text]]

    with pytest.raises(KeyError) as caught:
        ingest(TextFiles(tmp_path, per="line", tokenizer=fail), url)
    assert caught.value.__notes__ == ["while tokenizing a.txt: line 2"]


def test_wrong_arguments(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match="per must be"):
        TextFiles(tmp_path, per="word")
    with pytest.raises(NotFound, match="is a text"):
        (tmp_path / "x.csv").write_text("")
        ingest(TextFiles(tmp_path), url)


def test_files_are_parts(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("x" * 100)
    importer = TextFiles(tmp_path, tokenizer=to_bytes)

    async def split() -> list[TextFiles]:
        await importer.scan()
        try:
            return importer.split(200)
        finally:
            await importer.close()

    assert [len(part._files.files) for part in asyncio.run(split())] == [2, 1]


@pytest.mark.parametrize("end", [end for end in COMPRESS if end])
@pytest.mark.parametrize("between", [b"", bytes(4), bytes(300_000)])
def test_several_streams_are_one_file(tmp_path: Path, url: str, samples_of: Any, end: str, between: bytes) -> None:
    """As `cat a.xz b.xz` makes them, and tools that compress with many threads."""
    if between and end != ".xz":
        return
    streams = [COMPRESS[end](json.dumps({"text": text}).encode() + b"\n") for text in ("one", "two", "three")]
    (tmp_path / f"x.jsonl{end}").write_bytes(between.join(streams) + between)
    ingest(TextFiles(tmp_path), url)
    assert texts(url, samples_of) == ["one", "two", "three"]
    (tmp_path / f"x.jsonl{end}").write_bytes(between.join(streams)[:-5])
    with pytest.raises(CorruptData):
        ingest(TextFiles(tmp_path), url, overwrite=True)
