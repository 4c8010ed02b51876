"""Columns are added, renamed and dropped; every reader sees a dataset that looks as if it had been written so."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader import ShardDataset
from concurrent_loader.storage import (
    FetchEngine,
    ShardWriter,
    collect_garbage,
    delete,
    load_manifest,
    open_store,
    purge,
    verify_dataset,
)
from concurrent_loader.storage.columns import add_column, add_columns, drop_column, rename_column
from concurrent_loader.storage.columns import values as making
from concurrent_loader.storage.errors import CommitConflict, ConfigurationError, NotFound, SchemaError, StorageError
from concurrent_loader.storage.shards.editing import commit_edit as committing
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import commit

NUM = 60


def row(number: int) -> dict[str, Any]:
    return {"image": bytes([number]) * (300 + number), "label": number, "name": f"n{number}"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    columns = {"image": "bytes", "label": "int64", "name": "str"}
    with ShardWriter(str(tmp_path / "data"), columns=columns, shard_size="4KiB", metadata=METADATA) as writer:
        for number in range(NUM):
            writer.write(row(number))
    assert len(writer.manifest.shards) > 4
    return str(tmp_path / "data")


METADATA = {"classes": {"label": ["a", "b"]}, "note": 1}


def contents(url: str, **options: Any) -> list[dict[str, Any]]:
    with ShardDataset(url, **options) as dataset:
        return dataset[:]


def newest(url: str) -> Manifest:
    return asyncio.run(load_manifest(open_store(url)))


def problems(url: str) -> list[str]:
    engine = FetchEngine(open_store(url))
    return [str(each) for each in asyncio.run(verify_dataset(engine, newest(url))).problems]


def files(url: str) -> set[str]:
    return {path.relative_to(url).as_posix() for path in Path(url).rglob("*") if path.is_file()}


class TestNames:
    def test_rename_touches_no_object(self, url: str) -> None:
        before, old = files(url), newest(url)
        manifest = rename_column(url, "label", "class")
        assert files(url) - before == {"manifests/0000000002.clm"}
        assert manifest == newest(url)
        assert list(manifest.schema.items()) == [("image", "bytes"), ("class", "int64"), ("name", "str")]
        assert manifest.metadata["classes"] == {"class": ["a", "b"]}
        assert manifest.statistics["class"] == old.statistics["label"]
        assert contents(url) == [{("class" if k == "label" else k): v for k, v in row(n).items()} for n in range(NUM)]
        assert contents(url, snapshot=1) == [row(n) for n in range(NUM)]
        assert problems(url) == []

    def test_a_renamed_column_is_still_one_get(self, url: str) -> None:
        rename_column(url, "label", "class")
        with ShardDataset(url) as dataset:
            before = dataset.fetch_stats.num_gets
            assert dataset.column("class").tolist() == list(range(NUM))
            assert dataset.fetch_stats.num_gets - before <= 1
            with pytest.raises(SchemaError, match="no such column"):
                dataset.column("label")

    def test_drop(self, url: str) -> None:
        manifest = drop_column(url, "label")
        assert list(manifest.schema) == ["image", "name"]
        assert (manifest.metadata["classes"], manifest.metadata["note"]) == ({}, 1)
        assert "label" not in manifest.statistics
        assert contents(url) == [{"image": row(n)["image"], "name": f"n{n}"} for n in range(NUM)]
        assert problems(url) == []

    def test_a_dropped_name_is_free(self, url: str) -> None:
        drop_column(url, "label")
        rename_column(url, "name", "label")
        add_column(url, "name", "int64", range(NUM))
        assert contents(url)[7] == {"image": row(7)["image"], "label": "n7", "name": 7}
        assert problems(url) == []

    def test_names_that_are_wrong(self, url: str) -> None:
        for call, match in (
            (lambda: rename_column(url, "lable", "x"), "no such column"),
            (lambda: rename_column(url, "label", "name"), "already"),
            (lambda: rename_column(url, "label", "a b"), "A-Z"),
            (lambda: drop_column(url, "lable"), "no such column"),
            (lambda: add_column(url, "label", "int64", range(NUM)), "already"),
            (lambda: add_column(url, "x", "int65", range(NUM)), "unknown column type"),
        ):
            with pytest.raises(SchemaError, match=match):
                call()
        for name in ("label", "name"):
            drop_column(url, name)
        with pytest.raises(SchemaError, match="last columns"):
            drop_column(url, "image")
        assert newest(url).snapshot == 3

    def test_a_token_commits_once(self, url: str) -> None:
        first = rename_column(url, "label", "class", token="job 1")
        assert rename_column(url, "label", "class", token="job 1") == first
        assert newest(url).snapshot == 2

    def test_another_writer_comes_first(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        hits, schema = iter([True, True]), newest(url).schema

        async def commit_late(engine: FetchEngine, manifest: Manifest, **options: Any) -> None:
            if next(hits, False):
                with ShardWriter(url, columns=schema, append=True) as writer:
                    writer.write(row(0))
            await commit(engine, manifest, **options)

        monkeypatch.setattr(committing, "commit", commit_late)
        assert rename_column(url, "label", "class").snapshot == 4
        assert len(contents(url)) == NUM + 2


class TestAdd:
    @pytest.mark.slow
    def test_values_of_every_kind(self, url: str) -> None:
        before = files(url)
        vectors = np.arange(NUM * 3, dtype=np.float32).reshape(NUM, 3)
        add_column(url, "vector", "float32[3]", vectors)
        add_column(url, "caption", "str", [f"caption {n}" for n in range(NUM)])
        add_column(url, "meta", "json", [{"n": n} for n in range(NUM)])
        add_column(url, "blob", "bytes", [b"x" * n for n in range(NUM)])
        add_column(url, "ragged", "int16[...]", [np.arange(n, dtype=np.int16) for n in range(NUM)])
        manifest = newest(url)
        assert before <= files(url)
        assert set(manifest.referenced_keys()) | {f"manifests/{n:010d}.clm" for n in range(1, 7)} == files(url)
        for number, sample in enumerate(contents(url)):
            assert {name: sample[name] for name in row(number)} == row(number)
            assert np.array_equal(sample["vector"], vectors[number])
            assert (sample["caption"], sample["meta"]) == (f"caption {number}", {"n": number})
            assert (sample["blob"], sample["ragged"].tolist()) == (b"x" * number, list(range(number)))
        assert manifest.statistics["vector"]["max"] == NUM * 3 - 1
        assert manifest.statistics["blob"]["total_bytes"] == NUM * (NUM - 1) // 2
        assert problems(url) == []

    @pytest.mark.slow
    def test_a_column_is_one_get_and_shards_are_not_fetched(self, url: str) -> None:
        add_column(url, "rank", "int32", np.arange(NUM, dtype=np.int32))
        add_column(url, "caption", "str", [f"caption {n}" for n in range(NUM)])
        with ShardDataset(url, columns=["rank", "caption"]) as dataset:
            before = dataset.fetch_stats.num_gets
            assert dataset.column("rank").tolist() == list(range(NUM))
            assert dataset.fetch_stats.num_gets - before <= 1
            assert dataset[NUM - 1] == {"rank": NUM - 1, "caption": f"caption {NUM - 1}"}
            assert dataset.column("caption")[3] == "caption 3"
        shards = [path for path in Path(url, "shards").iterdir() if path.stem in set(newest(url).table.digests)]
        for path in shards:
            path.unlink()  # no reader of the added columns needs them
        assert contents(url, columns=["rank"]) == [{"rank": n} for n in range(NUM)]

    @pytest.mark.slow
    def test_a_function_of_samples(self, url: str) -> None:
        threads, seen = set(), []

        def length(sample: dict[str, Any]) -> int:
            threads.add(threading.current_thread().name)
            return len(sample["image"]) + sample["label"]

        add_column(url, "length", "int64", length, workers=3)
        assert [each["length"] for each in contents(url)] == [300 + 2 * n for n in range(NUM)]
        assert all(name.startswith("storage-columns") for name in threads)
        add_columns(
            url, {"half": "float64", "text": "str"},
            lambda samples: [{"half": each["length"] / 2, "text": each["name"].upper()} for each in samples],
            inputs=["name", "length"], batched=True, on_progress=lambda now: seen.append(now.num_samples),
        )  # fmt: skip
        assert contents(url, columns=["half", "text"])[5] == {"half": 155.0, "text": "N5"}
        assert seen == sorted(seen)
        assert seen[-1] == NUM

    def test_the_result_does_not_depend_on_workers(self, url: str) -> None:
        def one(workers: int) -> tuple[Any, ...]:
            add_column(url, f"w{workers}", "int64", lambda sample: sample["label"] * 2, workers=workers)
            added = newest(url).column_sets[-1]
            with ShardDataset(url) as dataset:
                return len(added.shards), added.table.num_samples.tolist(), dataset.column(f"w{workers}").tolist()

        assert one(1) == one(4)

    def test_by_another_column(self, url: str) -> None:
        add_column(url, "score", "float32", {f"n{n}": n / 2 for n in range(NUM)}, by="name")
        assert contents(url, columns=["score"])[8] == {"score": 4.0}
        with pytest.raises(SchemaError, match="no value for a sample") as caught:
            add_column(url, "other", "float32", {f"n{n}": 0.0 for n in range(NUM - 1)}, by="name")
        assert (caught.value.got, newest(url).snapshot) == (f"n{NUM - 1}", 2)
        add_column(url, "few", "int64", {3: 7}, by="label", default=-1)
        assert [each["few"] for each in contents(url, columns=["few"])[2:5]] == [-1, 7, -1]
        with pytest.raises(ConfigurationError, match="by="):
            add_column(url, "none", "int64", range(NUM), default=0)

    def test_nulls(self, url: str) -> None:
        some = {f"n{n}": n for n in range(0, NUM, 2)}
        half = [n if n % 2 == 0 else None for n in range(NUM)]
        add_column(url, "by_key", "int64?", some, by="name")
        add_column(url, "listed", "str?", [None if n is None else str(n) for n in half])
        masked = np.ma.array(np.arange(NUM, dtype=np.float32), mask=[n is None for n in half])
        add_column(url, "masked", "float32?", masked)
        add_columns(
            url, {"both": "int8?", "other": "bytes?"}, lambda sample: {"both": sample["by_key"], "other": None},
            inputs=["by_key"],
        )  # fmt: skip
        for n, each in enumerate(contents(url)):
            expected = (half[n], None if half[n] is None else str(n), half[n], half[n], None)
            assert (each["by_key"], each["listed"], each["masked"], each["both"], each["other"]) == expected
        assert newest(url).statistics["by_key"] == {"max": NUM - 2, "min": 0, "num_null": NUM // 2}
        assert problems(url) == []
        with pytest.raises(SchemaError, match="only an optional column"):
            add_column(url, "plain", "str", [None] * NUM)

    @pytest.mark.parametrize("values", [range(NUM - 1), [1] * (NUM + 1), "x" * NUM, 7, {1: 2}])
    def test_a_wrong_number_of_values(self, url: str, values: Any) -> None:
        with pytest.raises(ConfigurationError, match="one value per sample"):
            add_column(url, "x", "int64", values)
        assert newest(url).snapshot == 1

    def test_a_wrong_value_names_its_sample(self, url: str) -> None:
        values: list[Any] = [*range(40), "forty", *range(41, NUM)]
        with pytest.raises(SchemaError) as caught:
            add_column(url, "x", "int64", values)
        assert (caught.value.sample, caught.value.column) == (40, "x")
        assert newest(url).snapshot == 1

    def test_a_function_that_fails(self, url: str) -> None:
        def wrong(sample: dict[str, Any]) -> int:
            return 1 // (sample["label"] - 33)

        with pytest.raises(ZeroDivisionError) as caught:
            add_column(url, "x", "int64", wrong)
        assert caught.value.__notes__ == ["while the values of sample 33 were made"]
        with pytest.raises(SchemaError, match="one value per sample"):
            add_column(url, "x", "int64", lambda samples: [1], batched=True)
        assert newest(url).snapshot == 1

    def test_too_much_for_one_file(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(making, "MAX_SHARD_BYTES", 5000)
        with pytest.raises(SchemaError, match="1 GiB"):
            add_column(url, "x", "bytes", [bytes(1000)] * NUM)

    def test_again_after_a_failure_at_the_commit(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = 0

        async def lost(engine: FetchEngine, manifest: Manifest, **options: Any) -> None:
            nonlocal calls
            calls += 1
            await commit(engine, manifest, **options)
            raise StorageError("the answer was lost")

        monkeypatch.setattr(committing, "commit", lost)
        with pytest.raises(StorageError, match="lost"):
            add_column(url, "x", "int64", range(NUM), token="once")
        monkeypatch.undo()
        before = files(url)
        assert add_column(url, "x", "int64", range(NUM), token="once").snapshot == 2
        assert (files(url), calls) == (before, 1)

    def test_samples_that_come_meanwhile(self, url: str) -> None:
        def appending(sample: dict[str, Any]) -> int:
            if sample["label"] == 0:
                with ShardWriter(url, columns=newest(url).schema, append=True) as writer:
                    writer.write(row(9))
            return 1

        with pytest.raises(CommitConflict, match="add them again"):
            add_column(url, "x", "int64", appending)
        assert add_column(url, "x", "int64", lambda sample: 2).num_samples == NUM + 1

    def test_a_row_that_is_not_deleted_any_more(self, url: str) -> None:
        delete(url, ids=[3])

        def values(sample: dict[str, Any]) -> int:
            if sample["label"] == 0:
                manifest = newest(url)
                undone = replace(manifest, snapshot=3, parent=manifest.digest, deleted=None)
                asyncio.run(commit(FetchEngine(open_store(url)), undone))
            return 1

        with pytest.raises(CommitConflict, match="samples of the dataset changed"):
            add_column(url, "x", "int64", values, inputs=["label"])

    def test_rows_that_are_deleted_meanwhile(self, url: str) -> None:
        def values(sample: dict[str, Any]) -> int:
            if sample["label"] == 0:
                delete(url, ids=[5])
            return int(sample["label"])

        add_column(url, "x", "int64", values, inputs=["label"])
        assert [each["x"] for each in contents(url)] == [n for n in range(NUM) if n != 5]

    def test_columns_that_come_meanwhile(self, url: str) -> None:
        def renaming(sample: dict[str, Any]) -> int:
            if sample["label"] == 0:
                rename_column(url, "label", "class")
                add_column(url, "y", "int64", range(NUM))
            return 1

        add_column(url, "x", "int64", renaming)
        assert contents(url)[3] == {"image": row(3)["image"], "class": 3, "name": "n3", "y": 3, "x": 1}

    @pytest.mark.parametrize("is_function", [False, True])
    def test_beside_deleted_rows(self, url: str, is_function: bool) -> None:
        gone = {0, *range(7, 30), NUM - 1}  # with all rows of some shards
        delete(url, ids=sorted(gone))
        left = [n for n in range(NUM) if n not in gone]
        kinds: dict[str, tuple[str, Callable[[int], Any]]] = {
            "i": ("int16", int), "f": ("float32[2]", lambda n: [n, 1.0]), "s": ("str", str),
            "j": ("json", lambda n: [n]), "b": ("bytes", lambda n: bytes([n])),
            "m": ("image", lambda n: b"GIF89a" + bytes([n])),
            "r": ("int8[...]", lambda n: [[n]]), "z": ("bool", lambda n: n % 2 == 0), "o": ("int64?", lambda n: None),
            "l": ("float32[300]", lambda n: [float(n)] * 300),
        }  # fmt: skip
        types = {name: type_ for name, (type_, _) in kinds.items()}
        if is_function:
            add_columns(
                url, types, lambda each: {name: of(each["label"]) for name, (_, of) in kinds.items()}, inputs=["label"]
            )
        else:
            add_columns(url, types, {name: [of(n) for n in left] for name, (_, of) in kinds.items()})
        add_column(url, "array", "int64", np.array(left))

        def check() -> None:
            found = contents(url)
            assert [each["array"] for each in found] == left
            for n, each in zip(left, found, strict=True):
                assert each["name"] == f"n{n}"
                for name, (_, of) in kinds.items():
                    assert (each[name].tolist() if hasattr(each[name], "tolist") else each[name]) == of(n)
            assert problems(url) == []

        check()
        with ShardDataset(url) as dataset:
            assert dataset.column("i").tolist() == left  # type: ignore[union-attr]
        delete(url, ids=[1])
        left.pop(1)
        check()
        assert purge(url).is_proved
        check()
        assert newest(url).deleted is None

    def test_an_empty_dataset(self, tmp_path: Path) -> None:
        with ShardWriter(str(tmp_path / "e"), columns={"a": "int64"}, allow_empty=True):
            pass
        add_column(str(tmp_path / "e"), "b", "str", [])
        assert contents(str(tmp_path / "e")) == []
        assert problems(str(tmp_path / "e")) == []


class TestLater:
    """What else is done with datasets, after columns were added, renamed and dropped."""

    @pytest.fixture
    def changed(self, url: str) -> str:
        add_columns(url, {"caption": "str", "blob": "bytes"}, lambda s: {"caption": s["name"] * 2, "blob": s["image"]})
        add_column(url, "rank", "int64", range(NUM))
        rename_column(url, "label", "class")
        rename_column(url, "rank", "label")
        drop_column(url, "name")
        return url

    def row(self, number: int) -> dict[str, Any]:
        image = row(number)["image"]
        return {
            "image": image, "class": number, "caption": f"n{number}n{number}", "blob": image, "label": number,
        }  # fmt: skip

    @pytest.mark.slow
    def test_append_needs_all_columns(self, changed: str) -> None:
        with pytest.raises(SchemaError, match="differ"):
            ShardWriter(changed, columns={"image": "bytes", "class": "int64"}, append=True)
        schema = newest(changed).schema
        with ShardWriter(changed, columns=schema, append=True, shard_size="4KiB") as writer:
            for number in range(NUM, NUM + 30):
                writer.write(self.row(number))
            with pytest.raises(SchemaError, match="missing"):
                writer.write({"image": b"", "class": 1})
            with pytest.raises(SchemaError) as caught:
                writer.write({**self.row(0), "caption": 7})
            assert (caught.value.column, caught.value.sample) == ("caption", 30)
        assert contents(changed) == [self.row(n) for n in range(NUM + 30)]
        with ShardDataset(changed) as dataset:
            assert dataset.column("label").tolist() == dataset.column("class").tolist() == list(range(NUM + 30))
        assert newest(changed).statistics["label"]["max"] == NUM + 29
        assert problems(changed) == []
        assert add_column(changed, "more", "int64", range(NUM + 30)).num_samples == NUM + 30
        assert problems(changed) == []

    @pytest.mark.slow
    def test_a_writer_that_began_before(self, changed: str) -> None:
        writer = ShardWriter(changed, columns=newest(changed).schema, append=True)
        writer.write(self.row(0))
        drop_column(changed, "caption")
        add_column(changed, "caption", "str", ["x"] * NUM)
        for name, kind in [("blob", "bytes"), ("label", "int64")]:  # the columns in their old order
            drop_column(changed, name)
            add_column(changed, name, kind, [b"" if kind == "bytes" else 0] * NUM)
        assert newest(changed).schema == writer.schema.to_dict()
        with pytest.raises(CommitConflict):
            writer.commit(rebase=False)
        with pytest.raises(SchemaError, match="do not fit"):
            writer.commit()

    def test_overwrite_begins_anew(self, changed: str) -> None:
        with ShardWriter(changed, columns={"a": "int64"}, overwrite=True) as writer:
            writer.write({"a": 1})
        assert (newest(changed).places, newest(changed).column_sets) == ({}, ())
        assert contents(changed) == [{"a": 1}]

    def test_verify_checks_the_added_columns(self, changed: str) -> None:
        entry = newest(changed).column_sets[0].shards[2]
        path = Path(changed, entry.key)
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        path.write_bytes(data)
        assert any(entry.key in problem for problem in problems(changed))
        path.unlink()
        assert any(entry.key in problem for problem in problems(changed))

    def test_the_fingerprint_stays_until_samples_change(self, changed: str) -> None:
        first = asyncio.run(load_manifest(open_store(changed), 1))
        assert newest(changed).fingerprint == first.fingerprint
        with ShardWriter(changed, columns=newest(changed).schema, append=True) as writer:
            writer.write(self.row(0))
        assert newest(changed).fingerprint != first.fingerprint

    @pytest.mark.slow
    def test_convert_and_export(self, changed: str, tmp_path: Path) -> None:
        from concurrent_loader import convert, export

        made = convert(changed, tmp_path / "native")
        assert (made.places, made.schema) == ({}, newest(changed).schema)
        assert contents(str(tmp_path / "native")) == [self.row(n) for n in range(NUM)]
        assert made.fingerprint == newest(changed).fingerprint
        for source, name in ((changed, "a"), (str(tmp_path / "native"), "b")):
            export(source, tmp_path / name, format="webdataset", columns=["caption", "label", "blob"])
        exported = [sorted(path.read_bytes() for path in (tmp_path / name).glob("*.tar")) for name in "ab"]
        assert exported[0] == exported[1] != []


def test_values_by_position_of_an_array_in_another_byte_order(url: str) -> None:
    add_column(url, "x", "int32", np.arange(NUM, dtype=">i4"))
    add_column(url, "y", "int64", np.arange(NUM, dtype=np.int16))
    assert contents(url, columns=["x", "y"])[50] == {"x": 50, "y": 50}


@pytest.mark.slow
def test_a_shard_that_is_damaged_in_the_cache_is_fetched_again(
    url: str, tmp_path: Path, make_damage: Callable[[Path], None]
) -> None:
    add_column(url, "blob", "bytes", [bytes([n]) * 50 for n in range(NUM)])
    with ShardDataset(url, cache_dir=tmp_path / "cache") as dataset:
        want = dataset[:]
        make_damage(tmp_path / "cache")
        assert dataset[:] == want


@pytest.fixture
def make_damage() -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_size > 100 and path.name != "lock":
                data = bytearray(path.read_bytes())
                data[len(data) // 3] ^= 1
                path.write_bytes(data)

    return damage


def test_garbage_collection_while_a_column_is_added(url: str) -> None:
    """An earlier attempt has left old files, which the collection deletes before, or after, they are written again."""

    def value(sample: dict[str, Any], fails_at: int, collects_at: tuple[int, ...]) -> bytes:
        if sample["label"] == fails_at:
            raise ValueError("stopped")
        if sample["label"] in collects_at:
            report = asyncio.run(collect_garbage(open_store(url), keep=1))
            deleted.append(report.num_objects)
        return b"x" * 100 + bytes([sample["label"]])

    deleted: list[int] = []
    add = partial(add_column, url, "extra", "bytes", inputs=["label"], workers=1)
    with pytest.raises(ValueError, match="stopped"):
        add(lambda sample: value(sample, NUM - 1, ()))
    left = [path for folder in ("shards", "columns") for path in (Path(url) / folder).iterdir()]
    for path in left:
        os.utime(path, (1e9, 1e9))
    try:
        add(lambda sample: value(sample, NUM, (NUM // 2, NUM - 1)))
    except NotFound:  # a file was deleted between its upload and the commit, a matter of time: "write … again"
        add(lambda sample: value(sample, NUM, ()))
    assert sum(deleted) > 0
    assert problems(url) == []
    expected = [row(number) | {"extra": b"x" * 100 + bytes([number])} for number in range(NUM)]
    assert contents(url) == expected
    asyncio.run(collect_garbage(open_store(url), keep=1, grace=timedelta(0)))
    assert problems(url) == []


def test_a_function_of_nothing(url: str) -> None:
    count = itertools.count()
    add_column(url, "x", "int64", lambda sample: -1 if sample else next(count), inputs=[])
    with ShardDataset(url) as dataset:
        assert sorted(dataset.column("x").tolist()) == list(range(len(dataset)))


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_nulls_of_a_library_are_nulls(url: str, library: str) -> None:
    values = [None if number % 7 == 0 else float(number) for number in range(NUM)]
    module = pytest.importorskip(library)
    add_column(url, "x", "float64?", module.array(values) if library == "pyarrow" else module.Series(values))
    assert [each["x"] for each in contents(url)] == values
