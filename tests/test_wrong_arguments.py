"""Whatever is passed for an argument: it works, or a typed error comes at once."""

from __future__ import annotations

import inspect
import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from concurrent_loader import Mixture, ObjectDataset, ShardDataset
from concurrent_loader.errors import LoaderError
from concurrent_loader.storage import ShardWriter, open_store
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.fetch import RetryPolicy
from concurrent_loader.storage.importers import ImageFolder
from concurrent_loader.storage.importers.ingest import ingest

WRONG: list[Any] = [
    None, True, -1, 0, 3.5, -1.0, float("nan"), 10**30, "", "x", "\x00", "\udce9", "1GiB", b"x", [], [1], {}, {"a": 1},
    object(), len,
]  # fmt: skip
TYPED = (StorageError, LoaderError, TypeError, ValueError)


def each_argument(call: Callable[..., Any], of: Callable[..., Any], good: Callable[[], dict[str, Any]]) -> None:
    """Calls with one wrong argument at a time."""
    parameters = inspect.signature(of).parameters.values()
    names = [each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    for name, wrong in itertools.product(names, WRONG):
        try:
            call(**{**good(), name: wrong})
        except TYPED:
            continue
        except Exception as error:
            raise AssertionError(f"{name}={wrong!r}: {error!r}") from error


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    folder = tmp_path / "photos"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "1.jpg").write_bytes(file.getvalue())
    return folder


@pytest.fixture
def data(tmp_path: Path, photos: Path) -> str:
    url = str(tmp_path / "data")
    with ShardWriter(url, columns={"image": "jpeg", "label": "int64"}) as writer:
        for label in range(8):
            writer.write({"image": (photos / "cat" / "1.jpg").read_bytes(), "label": label})
    return url


@pytest.mark.slow
def test_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    numbers = itertools.count()

    def write(**options: Any) -> None:
        with ShardWriter(**options) as writer:
            writer.write({"a": 1})

    each_argument(write, ShardWriter, lambda: {"url": f"memory://wrong-{next(numbers)}", "columns": {"a": "int64"}})


@pytest.mark.slow
def test_ingest(photos: Path) -> None:
    numbers = itertools.count()
    each_argument(
        ingest, ingest, lambda: {"importer": ImageFolder(open_store(photos)), "url": f"memory://in-{next(numbers)}"}
    )


def test_importer(photos: Path) -> None:
    each_argument(ImageFolder, ImageFolder, lambda: {"store": open_store(photos)})


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_data_sets(photos: Path, data: str) -> None:
    each_argument(lambda **options: ShardDataset(**options).close(), ShardDataset, lambda: {"url": data})
    each_argument(lambda **options: ObjectDataset(**options).close(), ObjectDataset, lambda: {"url": str(photos)})


def test_views(data: str) -> None:
    with ShardDataset(data) as dataset:
        each_argument(Mixture, Mixture, lambda: {"datasets": [dataset, dataset]})
        each_argument(dataset.split, dataset.split, lambda: {"parts": [0.5, 0.5], "seed": 0})
        each_argument(dataset.filter, dataset.filter, lambda: {"predicate": lambda sample: True, "columns": ["label"]})


def test_policies_and_stores() -> None:
    each_argument(RetryPolicy, RetryPolicy, dict)
    each_argument(open_store, open_store, lambda: {"url": "s3://bucket/x"})
