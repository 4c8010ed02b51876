from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.batch import encoded_rows
from concurrent_loader.batch.encoded_rows import EncodedRows, can_pack_encoded, gather_rows
from concurrent_loader.batch.ragged import arrange
from concurrent_loader.storage import Column, ConfigurationError, ShardWriter

TOKENS = Column("x", "int16[...]")


@pytest.fixture(autouse=True, params=["native", "numpy"])
def _with_and_without_the_native_module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(encoded_rows, "_native", None)


def stored(*arrays: Any) -> list[bytes]:
    return [TOKENS.encode(np.asarray(each, np.int16)) for each in arrays]


def test_rows_are_packed_as_arrays_are() -> None:
    arrays = [np.arange(length, dtype=np.int16) for length in (3, 0, 1, 5)]
    parts = [EncodedRows.of(TOKENS, stored(*arrays[:2])), EncodedRows.of(TOKENS, stored(*arrays[2:]))]
    order = [2, 0, 3, 1]
    expected = arrange("x", [torch.from_numpy(arrays[at]) for at in order], "packed")
    packed = gather_rows(parts, order).packed("x")
    assert list(packed) == list(expected)
    for name, tensor in packed.items():
        assert (tensor.dtype, tensor.tolist()) == (expected[name].dtype, expected[name].tolist())
    packed["x"] += 1  # can be written to
    mixed = gather_rows([parts[0], [np.zeros((2, 4), np.int16)]], [2, 0, 1])
    assert [each.shape for each in mixed] == [(2, 4), (3,), (0,)]


@pytest.mark.parametrize(
    "value",
    [
        TOKENS.encode(np.zeros((2, 2), np.int16)),
        TOKENS.encode(np.int16(1) * np.ones((), np.int16)),
        stored([1, 2])[0][:-1],
        stored([1, 2])[0] + bytes(2),
        b"\1",
        b"",
        b"\1\0\0\0\0\0\0\1" + stored([1])[0][8:],
    ],
)
def test_other_values_are_decoded_one_by_one(value: bytes) -> None:
    assert EncodedRows.of(TOKENS, [*stored([1]), value]) is None


def test_only_whole_characters_are_text() -> None:
    text = Column("x", "str")
    assert EncodedRows.of(text, [b"a", b"", "\u00e9".encode()]) is not None
    for bad in ([b"\xc3", b"\xa9"], [b"a", b"\xff"], [b"a\xc3", b"", b"\xa9"]):
        assert EncodedRows.of(text, bad) is None
    assert EncodedRows.of(Column("x", "bytes"), [b"\xff"]) is not None


def test_columns_whose_values_may_be_invalid_are_not_packed_like_this() -> None:
    assert not any(can_pack_encoded(Column("x", kind)) for kind in ("bool[...]", "int8[...]?", "str?", "json", "int8"))


@pytest.mark.parametrize("shuffle", [False, True])
def test_text_and_bytes_are_packed_by_the_loader(tmp_path: Path, shuffle: bool) -> None:
    columns = {"text": "str", "data": "bytes", "maybe": "str?", "tokens": "float32[...]"}
    samples = [
        {"text": f"caption \u00e9 {n}" * (n % 3), "data": bytes([n]) * n, "maybe": None, "tokens": [n / 2] * (n % 4)}
        for n in range(70)
    ]
    with ShardWriter(tmp_path, columns=columns, shard_size="4KiB") as writer:
        for sample in samples:
            writer.write(sample)
    ragged: Any = dict.fromkeys(("text", "data", "tokens"), "packed")
    with ShardDataset(tmp_path) as dataset:
        options: Any = {"batch_size": 16, "shuffle": shuffle, "seed": 3, "ragged": ragged}
        plain = ConcurrentDataLoader(dataset, transform=lambda sample: sample, **options)  # sample by sample
        for batch, expected in zip(ConcurrentDataLoader(dataset, **options), plain, strict=True):
            assert batch.keys() == expected.keys()
            for name in ("text", "data", "tokens"):
                for column in (name, f"{name}_seq_lens", f"{name}_cu_seqlens"):
                    assert batch[column].dtype == expected[column].dtype
                    assert batch[column].tolist() == expected[column].tolist(), column
            whole = [samples[at] for at in batch.sample_ids.tolist()]
            assert bytes(batch["text"].numpy()).decode() == "".join(sample["text"] for sample in whole)
        for name, how in (("maybe", "packed"), ("text", "pad"), ("text", "list")):
            with pytest.raises(ConfigurationError):
                next(iter(ConcurrentDataLoader(dataset, 4, ragged={name: how})))  # type: ignore[dict-item]


def test_the_native_module_refuses_what_it_was_not_made_for() -> None:
    native = pytest.importorskip("concurrent_loader.batch._packed_rows")
    rows = stored([1, 2], [3])
    for header_bytes, item_bytes in ((8, 2), (16, 0), (-1, 2)):
        with pytest.raises(ValueError, match="must be"):
            native.count_numbers(rows, header_bytes, item_bytes)
    for size, header_bytes in ((5, 16), (7, 16), (6, -1), (6, 19), (6, 21)):
        with pytest.raises(ValueError, match="shorter"):
            native.join_into(bytearray(size), rows, header_bytes)
    for bad in ([None], None, [*rows, 3]):
        with pytest.raises(TypeError):
            native.count_numbers(bad, 16, 2)
        with pytest.raises(TypeError):
            native.join_into(bytearray(6), bad, 16)
    with pytest.raises(TypeError):
        native.join_into(bytes(6), rows, 16)
    assert native.count_numbers([], 16, 2) == b""


@given(st.lists(st.lists(st.integers(-(2**15), 2**15 - 1), max_size=20), max_size=20), st.randoms())
def test_both_ways_pack_the_same(values: list[list[int]], random: Any) -> None:
    rows = EncodedRows.of(TOKENS, [memoryview(row) if random.random() < 0.5 else row for row in stored(*values)])
    order = random.sample(range(len(values)), len(values))
    packed = gather_rows([rows], order).packed("x")
    assert packed["x"].tolist() == [number for at in order for number in values[at]]
    assert packed["x_seq_lens"].tolist() == [len(values[at]) for at in order]
