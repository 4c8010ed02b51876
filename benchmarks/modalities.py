"""Data that are not images: ``python -m benchmarks.modalities [--json FILE] [--quick]``.

Text, from the local drive: documents of log-normal lengths are packed into rows of 4096 tokens, in a shuffled order, by

- `Packed` of this package, which cuts the stream of documents (``split``) or fits whole documents into rows (``fit``);
- torch's DataLoader over a memory-mapped file of all tokens, with a collate function that concatenates a batch;
- datasets (Hugging Face): ``group_texts``, the usual map over 1,000 documents, and torch's DataLoader. The time of the
  map is given apart;
- Grain, if it is installed: ``ConcatThenSplitIterDataset`` and ``FirstFitPackIterDataset``, over the same file.

Density is the share of rows that is no padding. Sides take turns in one process; ``tokens_s_vs_best`` compares ours
(``split``) with the best other of a round. ``bucket_padding_share`` is the padding of `ByLength` with 30 buckets and
batches of 32; ``lhotse_padding_share`` that of lhotse's ``DynamicBucketingSampler`` over the same lengths, if it is
installed.

Audio and video: `benchmarks.modalities_av`. ``audio_vs_best`` and ``video_vs_whole_file`` compare ours with torchcodec,
``video_bytes_ratio`` is what we fetch ÷ the clips' own bytes. ``media_why_not`` says what is missing, such as FFmpeg.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch.utils.data import DataLoader, Dataset

from benchmarks.command import bar, in_turns, program
from benchmarks.figures import medians
from concurrent_loader import ByLength, ConcurrentDataLoader, Packed, ShardDataset, ShardWriter

_ROWS = 8  # per batch
_WORKERS = 2  # of torch's DataLoader
_BUCKETS = 30  # as in lhotse's documentation
Epoch = Callable[[Path, int], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Load:
    """The documents."""

    num_documents: int = 20_000
    length: int = 4096  # of a row
    num_rounds: int = 3
    num_sounds: int = 256
    num_videos: int = 48
    video_s: int = 60
    num_media_rounds: int = 5

    @property
    def lengths(self) -> npt.NDArray[np.int64]:  # log-normal, sigma 1, 663 tokens on average
        return np.random.default_rng(0).lognormal(6, 1, self.num_documents).astype(np.int64) + 1


# Each side yields the batches of an epoch, (N, length) with zeros for padding.


class _Flat(Dataset[Any]):
    """Documents as slices of one memory-mapped file."""

    def __init__(self, folder: Path) -> None:
        self._tokens = np.load(folder / "tokens.npy", mmap_mode="r")
        self._ends = np.load(folder / "ends.npy")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> npt.NDArray[np.int32]:
        start = self._ends[number - 1] if number else 0
        return np.array(self._tokens[start : self._ends[number]])


def _ours(folder: Path, seed: int, *, packed: Packed) -> Iterator[Any]:
    with ShardDataset(folder / "shards") as dataset:
        for batch in ConcurrentDataLoader(dataset, _ROWS, shuffle=True, seed=seed, batching=packed):
            yield batch["tokens"]


def _concatenated(length: int, documents: list[npt.NDArray[np.int32]]) -> torch.Tensor:
    stream = np.concatenate(documents)
    return torch.from_numpy(np.pad(stream, (0, -len(stream) % length)).reshape(-1, length))


def _torch(folder: Path, seed: int, *, length: int) -> Iterator[Any]:
    documents = _Flat(folder)
    per_batch = max(1, _ROWS * length * len(documents) // int(documents._ends[-1]))
    yield from DataLoader(
        documents, per_batch, shuffle=True, num_workers=_WORKERS, collate_fn=partial(_concatenated, length),
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def _group_texts(length: int, batch: dict[str, list[list[int]]]) -> dict[str, list[npt.NDArray[np.int32]]]:
    stream = np.concatenate([np.asarray(tokens, np.int32) for tokens in batch["tokens"]])
    num_rows = len(stream) // length  # the rest is dropped, as in the usual function
    return {"tokens": list(stream[: num_rows * length].reshape(num_rows, length))}


def _hugging_face(folder: Path, seed: int, *, length: int) -> Iterator[Any]:
    documents: Any = datasets.load_from_disk(str(folder / "hf")).shuffle(seed=seed)
    grouped = documents.map(partial(_group_texts, length), batched=True, load_from_cache_file=False)
    yield None  # prepared
    for batch in DataLoader(grouped.with_format("torch"), _ROWS, num_workers=_WORKERS):
        yield batch["tokens"]


def _grain(folder: Path, seed: int, *, length: int, fit: bool) -> Iterator[Any]:
    grain, more = import_module("grain"), import_module("grain.experimental")
    documents, end = _Flat(folder), length if fit else None
    # First fit takes only what is no longer than a row.
    source = grain.MapDataset.source(documents).shuffle(seed=seed).map(lambda each: {"tokens": each[:end]})
    kind = more.FirstFitPackIterDataset if fit else more.ConcatThenSplitIterDataset
    packed = kind(source.to_iter_dataset(), length_struct={"tokens": length}, **{"num_packing_bins": 64} if fit else {})
    for batch in packed.batch(_ROWS):
        yield batch["tokens"]


def _sides(length: int) -> dict[str, Epoch]:
    sides: dict[str, Epoch] = {
        "ours, split": partial(_ours, packed=Packed("tokens", length)),
        "ours, fit": partial(_ours, packed=Packed("tokens", length, packing="fit")),
        "torch, collate": partial(_torch, length=length),
        "datasets, group_texts": partial(_hugging_face, length=length),
    }
    if find_spec("grain") is not None:
        sides["Grain, concat then split"] = partial(_grain, length=length, fit=False)
        sides["Grain, first fit"] = partial(_grain, length=length, fit=True)
    return sides


def _write(folder: Path, lengths: npt.NDArray[np.int64]) -> None:
    tokens = np.random.default_rng(1).integers(1, 50_000, int(lengths.sum()), np.int32)
    ends = np.cumsum(lengths)
    np.save(folder / "tokens.npy", tokens)
    np.save(folder / "ends.npy", ends)
    documents = np.split(tokens, ends[:-1])
    with ShardWriter(folder / "shards", columns={"tokens": "int32[...]"}) as writer:
        for document in documents:
            writer.write({"tokens": document})
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"tokens": documents}).save_to_disk(str(folder / "hf"))


def _timed(batches: Iterator[Any], length: int) -> dict[str, float]:
    num_tokens = num_rows = 0
    prepared_s, began = 0.0, perf_counter()
    for batch in batches:
        if batch is None:
            prepared_s, began = perf_counter() - began, perf_counter()
            continue
        num_tokens += int((np.asarray(batch) != 0).sum())
        num_rows += len(batch)
    seconds = perf_counter() - began
    density = round(num_tokens / (num_rows * length), 4)
    made = {"tokens_s": round(num_tokens / seconds), "density": density, "num_tokens": num_tokens}
    return {**made, "prepared_s": round(prepared_s, 2)}


def _padding(lengths: npt.NDArray[np.int64], **buckets: Any) -> float:
    order = np.random.default_rng(2).permutation(len(lengths)).astype(np.int64)
    found = ByLength("tokens", **buckets).batches(order, lengths, global_batch_size=32, last_batch="short")
    batches = np.split(found.samples, found.ends[:-1])
    return round(float(1 - lengths.sum() / sum(len(batch) * lengths[batch].max() for batch in batches)), 4)


def _lhotse_padding(lengths: npt.NDArray[np.int64]) -> float | None:
    """Returns the padding of lhotse's batches of up to 32 cuts."""
    if find_spec("lhotse") is None:
        return None
    lhotse, sampling = import_module("lhotse"), import_module("lhotse.dataset.sampling")
    cuts = [lhotse.MonoCut(str(number), 0, float(length), 0) for number, length in enumerate(lengths.tolist())]
    sampler = sampling.DynamicBucketingSampler(
        lhotse.CutSet.from_cuts(cuts), max_cuts=32, num_buckets=_BUCKETS, shuffle=True, seed=2
    )
    batches = [[cut.duration for cut in batch] for batch in sampler]
    if sum(map(len, batches)) != len(lengths):
        raise AssertionError("lhotse left cuts out")
    return round(float(1 - lengths.sum() / sum(len(batch) * max(batch) for batch in batches)), 4)


def measure(load: Load, console: Console) -> dict[str, Any]:
    """Measures all sides in turns."""
    sides = _sides(load.length)
    rounds: list[dict[str, dict[str, float]]] = [{} for _ in range(load.num_rounds)]
    with tempfile.TemporaryDirectory() as folder, bar(console, "Epochs", len(sides) * load.num_rounds) as progress:
        _write(Path(folder), load.lengths)
        for number, side in in_turns(list(sides), load.num_rounds):
            rounds[number][side] = _timed(sides[side](Path(folder), number), load.length)
            progress.advance()
    rows: dict[str, dict[str, Any]] = {}
    for side in sides:
        epochs, rates = [each[side] for each in rounds], sorted(each[side]["tokens_s"] for each in rounds)
        rows[side] = {"side": side, **medians(epochs, lambda value: value), "extremes": [rates[0], rates[-1]]}
    others = [side for side in sides if not side.startswith("ours")]
    ratios = [each["ours, split"]["tokens_s"] / max(each[side]["tokens_s"] for side in others) for each in rounds]
    return {
        "load": {**asdict(load), "num_tokens": int(load.lengths.sum())},
        "text": list(rows.values()),
        "packing_density": rows["ours, fit"]["density"],
        "tokens_s_vs_best": round(median(ratios), 3),
        "bucket_padding_share": _padding(load.lengths, buckets=_BUCKETS),
        "lhotse_padding_share": _lhotse_padding(load.lengths),
        "plain_padding_share": _padding(load.lengths, buckets=1),
        **_media(load),
    }


def _media(load: Load) -> dict[str, Any]:
    try:
        media = import_module("benchmarks.modalities_av")
        import_module("torchcodec.decoders").AudioDecoder(media.flac(0))
    except (ImportError, OSError, RuntimeError) as error:  # torchcodec raises the last two without FFmpeg
        keys = ("audio", "video", "audio_vs_best", "video_vs_whole_file", "video_bytes_ratio")
        return {**dict.fromkeys(keys), "media_why_not": str(error).splitlines()[0]}
    found: dict[str, Any] = media.measure(load.num_sounds, load.num_videos, load.video_s, load.num_media_rounds)
    return {**found, "media_why_not": None}


main = program(
    "modalities", __doc__, measure, Load(), Load(300, 512, 1, num_sounds=8, num_videos=4, video_s=4, num_media_rounds=1)
)

if __name__ == "__main__":
    raise SystemExit(main())
