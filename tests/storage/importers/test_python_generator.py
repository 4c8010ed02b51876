from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader.storage.errors import ConfigurationError, CorruptData, NotFound, SchemaError
from concurrent_loader.storage.importers import ImportedSample, ImportProblem, PythonGenerator
from concurrent_loader.storage.importers.ingest import IngestProgress, ingest

pytestmark = pytest.mark.usefixtures("no_leaks")


def numbers(count: str = "500") -> Iterator[dict[str, object]]:
    for number in range(int(count)):
        yield {"x": number, "vector": np.full(number % 3, number, np.float32)}


class TestGenerator:
    def test_everything_arrives(self, url: str, samples_of: Any) -> None:
        report = ingest(PythonGenerator(numbers), url)
        assert report.manifest.schema == {"x": "int64", "vector": "float32[...]"}
        for ours, theirs in zip(samples_of(url), numbers(), strict=True):
            assert (ours["x"], ours["vector"].tolist()) == (theirs["x"], theirs["vector"].tolist())  # type: ignore[attr-defined]

    def test_a_name_and_arguments(
        self, tmp_path: Path, url: str, samples_of: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "my_source.py").write_text("def rows(a, b='x'):\n    yield {'a': a, 'b': b, 'c': object()}\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.path", [])
        ingest(PythonGenerator("my_source:rows", arg=["a=1"], columns={"a": "str"}, drop=["c"]), url)
        assert samples_of(url) == [{"a": "1", "b": "x"}]
        with pytest.raises(ConfigurationError, match="no such function"):
            PythonGenerator("my_source:none")
        with pytest.raises(ConfigurationError, match="no such module"):
            PythonGenerator("no_such_source:rows")
        for name in ("my_source", ":rows", "my_source:"):
            with pytest.raises(ConfigurationError, match="MODULE:FUNCTION"):
                PythonGenerator(name)
        with pytest.raises(ConfigurationError, match="name=value"):
            PythonGenerator("my_source:rows", arg=["a"])

    def test_nested_values_of_numpy_become_json(self, url: str, samples_of: Any) -> None:
        rows = [{"x": {"a": np.float32(0.5), "b": [np.arange(2)]}, "y": None}, {"x": {}, "y": np.int8(3)}]
        ingest(PythonGenerator(lambda: rows), url)
        assert samples_of(url) == [{"x": {"a": 0.5, "b": [[0, 1]]}, "y": None}, {"x": {}, "y": 3}]

    def test_a_bad_sample_is_named(self, url: str) -> None:
        def rows() -> Iterator[Any]:
            yield from numbers("250")
            yield {"x": "text", "vector": np.zeros(1, np.float32)}
            yield {"x": 1}
            yield [1, 2]

        with pytest.raises(CorruptData, match="--column x=TYPE") as caught:
            ingest(PythonGenerator(rows), url)
        assert caught.value.key == "sample 250"
        report = ingest(PythonGenerator(rows), url, on_error="skip")
        assert [problem.name for problem in report.skipped] == ["sample 250", "sample 251", "sample 252"]

    def test_types_that_no_column_has(self, url: str) -> None:
        with pytest.raises(SchemaError, match="--drop"):
            ingest(PythonGenerator(lambda: [{"x": object()}]), url)
        with pytest.raises(NotFound, match="no dicts, but int"):
            ingest(PythonGenerator(lambda: [1]), url)  # type: ignore[list-item]
        with pytest.raises(ConfigurationError, match="no such field"):
            ingest(PythonGenerator(lambda: [{"x": 1}], columns={"y": "int64"}), url)

    def test_an_error_of_the_function_is_the_users(self, url: str) -> None:
        def rows() -> Iterator[dict[str, object]]:
            yield from numbers("300")
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            ingest(PythonGenerator(rows), url)

    def test_an_endless_function_can_be_stopped(self, url: str) -> None:
        def rows() -> Iterator[dict[str, object]]:
            while True:
                yield {"x": 1}

        def stop(progress: IngestProgress) -> None:
            if progress.num_done > 1000:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ingest(PythonGenerator(rows), url, on_progress=stop)


class Points:
    """A source as users write it."""

    columns: Mapping[str, str] = {"x": "int64", "name": "str"}
    metadata: Mapping[str, Any] = {"by": "me"}
    identity = "points:1"

    def __iter__(self) -> Iterator[Any]:
        for number in range(100):
            yield {"x": number, "name": str(number)}
        yield ImportProblem(name="point 100", reason="it is missing")
        yield ImportedSample(name="point 101", values={"x": 101, "name": "last"}, num_bytes=8)


class TestSampleSource:
    def test_a_simple_source_is_an_importer(self, url: str, samples_of: Any) -> None:
        report = ingest(Points(), url, on_error="skip", append=True)
        assert [problem.name for problem in report.skipped] == ["point 100"]
        assert report.manifest.metadata["by"] == "me"
        assert [sample["x"] for sample in samples_of(url)] == [*range(100), 101]
        assert ingest(Points(), url, append=True).repeats

    def test_anything_else_is_refused(self, url: str) -> None:
        for wrong in (5, [{"x": 1}], {"x": 1}):
            with pytest.raises(ConfigurationError, match="columns"):
                ingest(wrong, url)  # type: ignore[arg-type]
