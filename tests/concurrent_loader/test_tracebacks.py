"""A user's mistake is shown with few frames of ours: the rest is one line below the message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import concurrent_loader
from concurrent_loader import ConcurrentDataLoader, LoaderError, ObjectDataset, ShardDataset, storage
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import StorageError

MAX_FRAMES = 5
OURS = tuple(str(Path(package.__file__).parent) for package in (concurrent_loader, storage))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracebacks") / "dataset"
    with ShardWriter(folder, columns={"a": "int64"}) as writer:
        for number in range(8):
            writer.write({"a": number})
    return folder


def unequal(sample: dict[str, int]) -> dict[str, np.ndarray]:
    return {f"a{sample['a']}": np.zeros(1)}


def writing(folder: Path, **options: object) -> None:
    with ShardWriter(folder.with_name("new"), overwrite=True, columns={"a": "int64"}) as writer:
        writer.write({"a": "text"})


def batches(folder: Path, **options: object) -> None:
    with ShardDataset(folder) as dataset:
        list(ConcurrentDataLoader(dataset, **options))


def reading(folder: Path, read: Callable[[ShardDataset], object]) -> None:
    with ShardDataset(folder) as dataset:
        read(dataset)


MISTAKES: dict[str, Callable[[Path], object]] = {
    "no data set": lambda folder: ShardDataset(folder.with_name("nothing")),
    "no snapshot": lambda folder: ShardDataset(folder, snapshot=7),
    "no column": lambda folder: ShardDataset(folder, columns=["b"]),
    "shards as objects": lambda folder: ObjectDataset(folder),
    "unknown option": lambda folder: ShardDataset("s3://bucket", storage_options={"endpoint": "x"}),
    "credentials in the URL": lambda folder: ShardDataset("s3://user:word@bucket"),
    "cache folder": lambda folder: ShardDataset(folder, cache_dir=__file__),
    "exists": lambda folder: ShardWriter(folder, columns={"a": "int64"}),
    "column type": lambda folder: ShardWriter(folder.with_name("new"), columns={"a": "integer"}),
    "value": writing,
    "column()": lambda folder: reading(folder, lambda dataset: dataset.column("b")),
    "filter": lambda folder: reading(folder, lambda dataset: dataset.filter(bool, columns=["b"])),
    "other options": lambda folder: reading(folder, lambda dataset: dataset.with_storage_options(endpoint="x")[0]),
    "batch size": lambda folder: batches(folder, batch_size=0),
    "decode": lambda folder: batches(folder, batch_size=2, decode={"b": "rgb"}),
    "transform": lambda folder: batches(folder, batch_size=2, transform=lambda sample: sample["b"]),
    "collate": lambda folder: batches(folder, batch_size=2, transform=unequal),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_few_frames_are_ours(mistake: str, folder: Path) -> None:
    with pytest.raises((StorageError, LoaderError)) as caught:
        MISTAKES[mistake](folder)
    ours = [str(entry.path) for entry in caught.traceback if str(entry.path).startswith(OURS)]
    assert len(ours) <= MAX_FRAMES, ours


def test_what_is_left_out_is_named_in_one_line(folder: Path) -> None:
    with pytest.raises(StorageError) as caught:
        ShardDataset(folder, snapshot=7)
    [note] = caught.value.__notes__
    assert note.startswith("raised at ")
    assert "manifest/snapshots.py:" in note
    assert "\n" not in note


def test_a_users_own_frames_stay(folder: Path) -> None:
    with pytest.raises(LoaderError) as caught:
        MISTAKES["transform"](folder)
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    trace = cause.__traceback__
    files = []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert files[-1] == __file__
