"""A loader class for DLIO, the tool behind MLPerf Storage: ``reader.data_loader_classname`` names it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from concurrent_loader.datasets.object_dataset import ObjectDataset
from concurrent_loader.datasets.shard_dataset import ShardDataset
from concurrent_loader.native_loader import NativeDataLoader
from concurrent_loader.storage.errors import ConfigurationError

try:
    from dlio_benchmark.common.enumerations import DatasetType, Shuffle, StorageType
    from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
except ImportError as error:
    raise ImportError(
        "concurrent_loader.integrations.dlio is loaded by DLIO; install it as docs/how-to/accelerators.md says"
    ) from error

__all__ = ["DlioDataLoader"]


class DlioDataLoader(BaseDataLoader):  # type: ignore[misc]
    """Reads DLIO's files, or a dataset of shards in their place, with this package's loader.

    Batches are encoded samples, as DLIO's own readers leave them. Each rank reads its part of every epoch. Derive a
    class to change an attribute, and name it in ``reader.data_loader_classname``::

        class Shards(DlioDataLoader):
            url = "s3://bucket/shards"
            options = {"cache_dir": "/mnt/nvme"}

    Attributes:
        url: URL of a dataset written by this package; default None, DLIO's own files with one sample each.
        options: Arguments of the dataset.

    Args:
        format_type: DLIO's format of the files.
        dataset_type: Training or evaluation.
        epoch: Epoch that DLIO begins with.
        data_loader_type: DLIO's kind of loader, which it leaves out for a class like this one.

    Raises:
        ConfigurationError: A file has several samples, and there is no ``url``.
    """

    url: ClassVar[str | None] = None
    options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int, data_loader_type: Any = None) -> None:
        super().__init__(format_type, dataset_type, epoch, data_loader_type)
        self._loader: NativeDataLoader | None = None

    def read(self) -> None:
        """Opens the dataset, once."""
        if self._loader is not None:
            return
        args = self._args
        self._loader = NativeDataLoader(
            self._open(),
            args.batch_size if self.dataset_type is DatasetType.TRAIN else args.batch_size_eval,
            args.sample_shuffle is not Shuffle.OFF,
            seed=args.seed,
            drop_last=True,
            rank=args.my_rank,
            world_size=args.comm_size,
            num_threads=args.read_threads or None,
        )

    def next(self) -> Iterator[Any]:
        """Yields the batches of one epoch."""
        super().next()
        self.read()
        assert self._loader is not None
        yield from self._loader

    def finalize(self) -> None:
        """Keeps the dataset open: DLIO calls this method after each epoch."""

    def _open(self) -> ObjectDataset | ShardDataset:
        args = self._args
        if self.url is not None:
            return ShardDataset(self.url, **self.options)
        if args.num_samples_per_file != 1:
            raise ConfigurationError(
                "DLIO's files have several samples each; write shards and set url, see docs/how-to/accelerators.md",
                got=args.num_samples_per_file,
            )
        folder = posixpath.join(args.storage_root or ".", args.data_folder, str(self.dataset_type))
        url = f"s3://{folder}" if args.storage_type is StorageType.S3 else folder
        return ObjectDataset(url, column="data", column_type="bytes", suffixes=[f".{args.format}"], **self.options)
