"""DLIO's loader class, beside a stand-in of the parts of DLIO that it uses."""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from concurrent_loader import ConfigurationError

_NAME = "concurrent_loader.integrations.dlio"


class DatasetType(enum.Enum):
    TRAIN, VALID = "train", "valid"

    def __str__(self) -> str:
        return str(self.value)


Shuffle = enum.Enum("Shuffle", ["OFF", "SEED"])
StorageType = enum.Enum("StorageType", ["LOCAL_FS", "S3"])


@pytest.fixture
def dlio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module, and DLIO's arguments as ``args``."""
    args = SimpleNamespace(
        batch_size=4, batch_size_eval=2, sample_shuffle=Shuffle.SEED, seed=1, my_rank=0, comm_size=1, read_threads=1,
        num_samples_per_file=1, storage_root=str(tmp_path), data_folder="data", storage_type=StorageType.LOCAL_FS,
        format="npz",
    )  # fmt: skip

    class BaseDataLoader:
        def __init__(self, format_type: str, dataset_type: DatasetType, epoch: int, kind: object) -> None:
            self._args, self.dataset_type = args, dataset_type

        def next(self) -> None:
            pass

    for name, contents in (
        ("dlio_benchmark", {}),
        ("dlio_benchmark.common", {}),
        ("dlio_benchmark.common.enumerations",
         {"DatasetType": DatasetType, "Shuffle": Shuffle, "StorageType": StorageType}),
        ("dlio_benchmark.data_loader", {}),
        ("dlio_benchmark.data_loader.base_data_loader", {"BaseDataLoader": BaseDataLoader}),
    ):  # fmt: skip
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, _NAME, raising=False)
    module = importlib.import_module(_NAME)
    yield SimpleNamespace(loader=module.DlioDataLoader, args=args)
    del sys.modules[_NAME]


def write_files(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"img_{number}.npz").write_bytes(b"sample %d" % number)
    (folder / "notes.txt").write_bytes(b"no sample")


def test_each_rank_reads_its_part_of_every_epoch(dlio: Any, tmp_path: Path) -> None:
    write_files(tmp_path / "data" / "train", 16)
    dlio.args.comm_size, epochs = 2, []
    for rank in range(2):
        dlio.args.my_rank = rank
        loader = dlio.loader("npz", DatasetType.TRAIN, 1)
        loader.read()
        for epoch in range(2):
            batches = [[bytes(data) for data in batch["data"]] for batch in loader.next()]
            assert [len(batch) for batch in batches] == [4, 4]
            epochs.append((epoch, [data for batch in batches for data in batch]))
            loader.finalize()
    for wanted in range(2):
        delivered = [data for epoch, samples in epochs if epoch == wanted for data in samples]
        assert sorted(delivered) == sorted(b"sample %d" % number for number in range(16))


def test_evaluation_has_its_own_files_and_batches(dlio: Any, tmp_path: Path) -> None:
    write_files(tmp_path / "data" / "valid", 5)
    assert [len(batch["data"]) for batch in dlio.loader("npz", DatasetType.VALID, 1).next()] == [2, 2]


def test_files_with_several_samples_need_shards(dlio: Any) -> None:
    dlio.args.num_samples_per_file = 1251
    with pytest.raises(ConfigurationError, match="several samples"):
        dlio.loader("tfrecord", DatasetType.TRAIN, 1).read()


def test_without_dlio_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dlio_benchmark", None)
    monkeypatch.delitem(sys.modules, _NAME, raising=False)
    with pytest.raises(ImportError, match="install it as"):
        importlib.import_module(_NAME)
