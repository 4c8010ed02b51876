"""The loader's `batching=Packed(…)`: the same rows for any number of ranks, and after any resume."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch

from concurrent_loader import (
    Balanced,
    ConfigurationError,
    LoaderStateError,
    Mixture,
    NativeDataLoader,
    Packed,
    PackedTokens,
    ShardDataset,
    adopt,
)
from concurrent_loader.storage import SchemaError, ShardWriter, delete

LENGTHS = np.random.default_rng(5).integers(0, 90, 101)
LENGTHS[40] = 1000  # a document of many rows
EOS = -1
COLUMNS = {"tokens": "int32[...]", "number": "int64", "x": "float32[...]"}


def document(number: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + int(LENGTHS[number])))


def write(url: str) -> None:
    with ShardWriter(url, columns=COLUMNS, shard_size="4KiB") as writer:
        for number in range(len(LENGTHS)):
            tokens = np.array(document(number), np.int32)
            writer.write({"tokens": tokens, "number": number, "x": np.zeros(number % 3, np.float32)})


@pytest.fixture(scope="module")
def corpus() -> Any:
    url = f"memory://{uuid4().hex}"
    write(url)
    with ShardDataset(url) as dataset:
        yield dataset


def loader_of(dataset: Any, batch_size: int = 8, packing: Any = "split", **options: Any) -> NativeDataLoader:
    batching = Packed("tokens", 64, eos=EOS, packing=packing, window=40)
    chosen = {"shuffle": True, "seed": 3, "shuffle_window": 30, "batching": batching, **options}
    return NativeDataLoader(dataset.select_columns(["tokens", "number"]), batch_size, **chosen)


def rows_of(batch: Any) -> list[list[int]]:
    """Returns the tokens of each row without padding; checks what else the batch says about them."""
    packed = PackedTokens.of(batch)
    sizes = packed.seq_lens.sum(1).tolist()
    assert packed.tokens.shape == (len(sizes), 64)
    assert batch["number"].tolist() == batch.sample_ids.tolist()
    assert len(batch.sample_ids) - batch.num_padded == int((packed.seq_lens > 0).sum())
    rows = [row[:size] for row, size in zip(packed.tokens.tolist(), sizes, strict=True)]
    pieces = [piece for row, lens in zip(rows, packed.seq_lens.tolist(), strict=True) for piece in split(row, lens)]
    for number, piece in zip(batch.sample_ids.tolist(), pieces, strict=not batch.num_padded):
        assert piece == [EOS] or piece[0] // 1000 in (number, 40)
    return rows


def split(row: list[int], lengths: list[int]) -> list[list[int]]:
    ends = np.cumsum(lengths)
    return [row[end - length : end] for end, length in zip(ends.tolist(), lengths, strict=True) if length]


def made(dataset: Any, world_size: int = 1, state: Any = None, **options: Any) -> list[list[list[int]]]:
    """Returns the rows of each step over all ranks, without rows of padding."""
    parts = []
    for rank in range(world_size):
        loader = loader_of(dataset, 8 // world_size, rank=rank, world_size=world_size, **options)
        if state is not None:
            loader.load_state_dict(state)
        parts.append([rows_of(batch) for batch in loader])
        assert state is not None or len(parts[-1]) == len(loader)
    return [[row for part in step for row in part if row] for step in zip(*parts, strict=True)]


@pytest.mark.parametrize("packing", ["split", "fit"])
def test_eight_ranks_read_the_stream_of_one(corpus: ShardDataset, packing: str) -> None:
    one = made(corpus, packing=packing)
    assert made(corpus, 8, packing=packing) == made(corpus, 2, packing=packing) == one
    every = sorted(token for step in one for row in step for token in row)
    assert every == sorted([token for number in range(101) for token in document(number)] + [EOS] * 101)


def test_without_shuffling_the_stream_is_the_dataset(corpus: ShardDataset) -> None:
    stream = [token for number in range(101) for token in (*document(number), EOS)]
    found = [token for step in made(corpus, shuffle=False) for row in step for token in row]
    assert found == stream


def test_resumes_in_the_middle_of_a_document_on_other_ranks(corpus: ShardDataset) -> None:
    whole = made(corpus)
    inside = [step for step, rows in enumerate(whole) if any(row[-1] // 1000 == 40 for row in rows)]
    for step in (0, inside[len(inside) // 2], len(whole)):
        loader = loader_of(corpus)
        batches = iter(loader)
        for _ in range(step):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        batches.close()
        assert all(isinstance(value, int) for value in state.values())
        assert made(corpus, 4, state) == whole[step:]


def test_epochs_differ_and_other_packings_are_other_orders(corpus: ShardDataset) -> None:
    loader = loader_of(corpus)
    assert [rows_of(batch) for batch in loader] != [rows_of(batch) for batch in loader]
    state = loader_of(corpus).state_dict()
    for batching in (None, Packed("tokens", 63, eos=EOS), Packed("tokens", 64)):
        with pytest.raises(LoaderStateError, match="another order"):
            loader_of(corpus, batching=batching).load_state_dict(state)


def test_views_draws_and_deletions(tmp_path: Path) -> None:
    write(str(tmp_path / "d"))
    delete(str(tmp_path / "d"), ids=[0, 1, 40])
    with ShardDataset(str(tmp_path / "d"), cache_dir=str(tmp_path / "cache")) as dataset:
        left = [number for number in range(101) if number not in (0, 1, 40)]
        assert {number for batch in loader_of(dataset, 4) for number in batch["number"].tolist()} == set(left)
        view = dataset.filter("number >= 95")
        found = [token for batch in loader_of(view, 2) for row in rows_only(batch) for token in row]
        assert sorted(found) == sorted([t for number in range(95, 101) for t in document(number)] + [EOS] * 6)
        drawn = loader_of(dataset, 4, sampling=Balanced("number", num_samples=300))
        ends = sum(row.count(EOS) for batch in drawn for row in rows_only(batch))
        assert ends == 300
        assert list(loader_of(dataset.subset([]), 4)) == []


def rows_only(batch: Any) -> list[list[int]]:
    sizes = batch["tokens_seq_lens"].sum(1).tolist()
    return [row[:size] for row, size in zip(batch["tokens"].tolist(), sizes, strict=True)]


def test_a_mixture_takes_turns_on_any_number_of_ranks(corpus: ShardDataset) -> None:
    view = corpus.select_columns(["tokens"])
    mixture = Mixture([view.subset(range(50)), view.subset(range(50, 101))], {0: [1, 0], 10: [1, 3]}, stop=30)

    def read(world_size: int, state: Any = None) -> list[list[tuple[int, list[int]]]]:
        parts = []
        for rank in range(world_size):
            loader = NativeDataLoader(
                mixture, 8 // world_size, shuffle=True, seed=3, batching=Packed("tokens", 64), rank=rank,
                world_size=world_size,
            )  # fmt: skip
            loader.set_epoch(1)
            if state is not None:
                loader.load_state_dict(state)
            batches = list(loader)
            assert all(len(set(batch.sources.tolist())) == 1 for batch in batches)
            parts.append([[(int(batch.sources[0]), row) for row in rows_only(batch) if row] for batch in batches])
        return [[row for part in step for row in part] for step in zip(*parts, strict=True)]

    one = read(1)
    assert [step[0][0] for step in one[:10]] == [0] * 10
    assert sum(step[0][0] for step in one) == 15
    assert read(4) == one
    loader = NativeDataLoader(mixture, 8, shuffle=True, seed=3, batching=Packed("tokens", 64))
    state = {**loader.state_dict(), "epoch": 1, "step": 17}
    assert read(2, state) == one[17:]


def test_counts_tokens_and_padding(corpus: ShardDataset) -> None:
    loader = loader_of(corpus, last_batch="pad")
    assert all(batch["tokens"].shape == (8, 64) for batch in loader)
    stats, total = loader.stats, int(LENGTHS.sum()) + 101
    assert stats.num_tokens == total
    assert stats.num_tokens + stats.num_padding_tokens == len(loader) * 8 * 64
    assert stats.padding_share == pytest.approx(1 - total / (len(loader) * 512))
    assert stats.tokens_per_s > 0
    assert "tokens" in stats._repr_html_()


@pytest.mark.processes
def test_worker_processes_make_the_same_rows(tmp_path: Path) -> None:
    write(str(tmp_path / "d"))
    with ShardDataset(str(tmp_path / "d")) as dataset:
        loader = loader_of(dataset, num_workers=2)
        assert [rows_of(batch) for batch in loader] == made(dataset)
        assert loader.stats.num_tokens == int(LENGTHS.sum()) + 101


def test_a_batch_moves_with_its_lengths(corpus: ShardDataset) -> None:
    batch = next(iter(loader_of(corpus))).to("meta")
    assert batch["tokens"].device == batch["tokens_seq_lens"].device == torch.device("meta")


def test_what_cannot_be_packed_is_refused(corpus: ShardDataset) -> None:
    for name, value in {"transform": dict, "collate_fn": list, "decode": {"number": "rgb"}}.items():
        with pytest.raises(ConfigurationError, match=rf"{name} works on whole samples|decode works"):
            loader_of(corpus, **{name: value})
    with pytest.raises(ConfigurationError, match="Packed needs its column"):
        NativeDataLoader(corpus.select_columns(["number"]), 2, batching=Packed("tokens"))
    with pytest.raises(ConfigurationError, match="Packed needs its column"):
        loader_of(corpus, ragged={"tokens": "pad"})
    with pytest.raises(SchemaError, match="token arrays"):
        NativeDataLoader(corpus, 2, batching=Packed("x"))
    tokens = corpus.select_columns(["tokens"])
    for per, packing in {"sample": "split", "batch": "fit"}.items():
        mixture = Mixture([tokens, tokens], per=per)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="Packed needs a Mixture"):
            NativeDataLoader(mixture, 4, batching=Packed("tokens", packing=packing))  # type: ignore[arg-type]


LITDATA = Path(__file__).parents[1] / "storage" / "adopt" / "golden" / "litdata"


def test_adopted_tokens_are_packed_whole(tmp_path: Path) -> None:
    """LitData's tokens have no header, unlike arrays of this project."""
    adopt("litdata", str(LITDATA / "tokens"), str(tmp_path))
    documents = [[*range(5)], [*range(10, 13)], [*range(20, 28)], [30]]
    with ShardDataset(str(tmp_path)) as dataset:
        assert dataset.lengths("tokens", exact=True).tolist() == [5, 3, 8, 1]
        assert dataset.subset([1, 3]).lengths("tokens").tolist() == [3, 1]
        loader = NativeDataLoader(dataset, 2, batching=Packed("tokens", 8, eos=EOS))
        packed = [PackedTokens.of(batch) for batch in loader]
    rows = [row[:size] for each in packed for row, size in zip(each.tokens.tolist(), each.seq_lens.sum(1), strict=True)]
    assert [token for row in rows for token in row] == [token for each in documents for token in (*each, EOS)]


def test_adopted_arrays_with_headers_are_refused(tmp_path: Path) -> None:
    adopt("litdata", str(LITDATA / "all"), str(tmp_path))
    with ShardDataset(str(tmp_path)) as dataset:
        assert len(dataset.lengths("tensor")) == len(dataset)
        with pytest.raises(SchemaError, match=r"not known.*litdata/tensor"):
            dataset.lengths("tensor", exact=True)
        with pytest.raises(SchemaError, match=r"not known.*litdata/tensor"):
            NativeDataLoader(dataset.select_columns(["tensor"]), 2, batching=Packed("tensor"))


@pytest.mark.parametrize("native", [True, False])
def test_adopted_numbers_that_look_like_a_header_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    """This project stores [7, 8, 9] and [5, 6] as these bytes."""
    if not native:
        monkeypatch.setattr("concurrent_loader.batch.encoded_rows._native", None)
    documents = [[1, 3, 7, 8, 9], [1, 2, 5, 6]]
    folder = tmp_path / "chunks"
    folder.mkdir()
    (folder / "c.bin").write_bytes(struct.pack("<4I9q", 2, 16, 56, 88, *documents[0], *documents[1]))
    leaf = {"type": None, "context": None, "children_spec": []}
    config = {
        "chunk_bytes": None, "chunk_size": 9, "compression": None, "data_format": ["no_header_tensor:17"],
        "data_spec": json.dumps([1, leaf]), "encryption": None, "item_loader": "TokensLoader",
    }  # fmt: skip
    chunk = {"chunk_bytes": 88, "chunk_size": 2, "dim": 9, "filename": "c.bin"}
    (folder / "index.json").write_text(json.dumps({"chunks": [chunk], "config": config}))
    adopt("litdata", str(folder), str(tmp_path / "index"))
    with ShardDataset(str(tmp_path / "index")) as dataset:
        assert dataset.columns == ("tokens",)
        batch = next(iter(NativeDataLoader(dataset, 2, ragged={"tokens": "packed"})))
    assert batch["tokens"].tolist() == documents[0] + documents[1]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_null_is_a_document_without_tokens(dtype: str) -> None:
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"tokens": f"{dtype}[...]?"}) as writer:
        for tokens in (None, [1, 2], None, [3]):
            writer.write({"tokens": None if tokens is None else np.array(tokens, dtype)})
    with ShardDataset(url) as dataset:
        for eos, stream in ((0, [0, 1, 2, 0, 0, 3, 0]), (None, [1, 2, 3])):
            batches = list(NativeDataLoader(dataset, 1, batching=Packed("tokens", 4, eos=eos)))
            packed = [PackedTokens.of(batch) for batch in batches]
            rows = [
                row[:size]
                for each in packed
                for row, size in zip(each.tokens.tolist(), each.seq_lens.sum(1), strict=True)
            ]
            assert [token for row in rows for token in row] == stream
            assert {each.tokens.dtype for each in packed} == {torch.int64 if dtype == "int64" else torch.int32}
