"""Writes the rows of a Ray Data pipeline as a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from concurrent_loader.storage.errors import AlreadyExists, ConfigurationError, SchemaError
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.importers.column_values import convert
from concurrent_loader.storage.importers.ingest_plan import PartPlan, WrittenPart
from concurrent_loader.storage.importers.part_processes import PartTarget
from concurrent_loader.storage.importers.parts import ImportOptions, newest_snapshot
from concurrent_loader.storage.importers.parts_commit import PartsCommit
from concurrent_loader.storage.importers.report import IngestReport
from concurrent_loader.storage.importers.sample_source import num_value_bytes
from concurrent_loader.storage.ray.ray_library import BlockAccessor, Datasink
from concurrent_loader.storage.shards.format.schema import Column, Schema
from concurrent_loader.storage.shards.manifest.commit_tokens import snapshot_of
from concurrent_loader.storage.shards.writing.part_writer import PartWriter
from concurrent_loader.storage.shards.writing.upload_queue import UploadQueue
from concurrent_loader.storage.sizes import Size

__all__ = ["ShardSink"]


class ShardSink(Datasink):  # type: ignore[misc]
    """A sink for `ray.data.Dataset.write_datasink`, which ends any Ray Data pipeline in a dataset.

    Each write task uploads shards by itself. The driver commits one snapshot when all tasks are done, so a job that
    fails or is killed makes nothing visible. Samples are in the order of Ray's write tasks; this is the order of the
    rows if ``ray.data.DataContext.get_current().execution_options.preserve_order`` is set.

    Args:
        url: URL of the dataset, which every machine of the cluster must reach.
        columns: Column types by name, as for `ShardWriter`. Other columns of the rows are left out. Bytes for a
            ``json`` column are JSON text.
        append: Whether to add to the newest snapshot, which must have the same columns.
        overwrite: Whether to replace the samples.
        shard_size: Upper bound of a shard, 8 MiB by default.
        metadata: JSON metadata of the snapshot.
        token: Name of the commit; see `ShardWriter`. It makes a job that is run twice add its rows once.
        client: Client library of the dataset's store.
        storage_options: Options of the dataset's store.

    Attributes:
        report: Report of the commit; None before.

    Raises:
        AlreadyExists: The dataset exists, and neither ``append`` nor ``overwrite`` is set. Or it has a commit of this
            token.
        SchemaError: A row does not fit the columns.
        CommitConflict: Another writer committed meanwhile.

    Example:
        >>> from concurrent_loader.storage.ray import ShardSink
        >>> sink = ShardSink("from-ray", columns={"number": "int64"})
        >>> sink.get_name()
        'ShardSink'
    """

    @hides_secrets
    def __init__(
        self,
        url: str,
        *,
        columns: Mapping[str, str],
        append: bool = False,
        overwrite: bool = False,
        shard_size: Size = "8MiB",
        metadata: Mapping[str, Any] | None = None,
        token: str | None = None,
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._options = ImportOptions.checked(
            shard_size=shard_size, metadata=metadata, append=append, overwrite=overwrite, token=token
        )
        self._columns = Schema.parse(columns).to_dict()
        self._target = PartTarget(url, client, dict(storage_options or {}))
        self._plan: PartPlan | None = None
        self.report: IngestReport | None = None

    def on_write_start(self, schema: Any = None) -> None:
        """Finds the snapshot to build on, and checks that the dataset may be written."""
        del schema
        options = self._options
        queue = self._open()
        try:
            newest = queue.run(newest_snapshot(queue.store))
            if snapshot_of(newest, options.token) is not None:
                raise AlreadyExists("the dataset has this commit already", url=queue.store.url, got=options.token)
            options.check_mode(newest, queue.store.url)
            if options.append and newest is not None and newest.schema != self._columns:
                raise SchemaError(
                    "the columns differ from those of the dataset to append to", url=queue.store.url,
                    expected=newest.schema, got=self._columns,
                )  # fmt: skip
        finally:
            queue.close()
        self._plan = PartPlan(
            name=uuid4().hex, url="ray.data", num_parts=0, num_samples=None, num_ignored=0, columns=self._columns,
            shard_bytes=options.shard_bytes, on_error="fail", derived=[], append=options.append,
            metadata=dict(options.metadata), token=options.token,
            parent=None if newest is None else (newest.snapshot, newest.digest), is_repeatable=False,
        )  # fmt: skip

    def write(self, blocks: Iterable[Any], ctx: Any) -> WrittenPart:
        """Uploads the shards of one task."""
        schema = Schema.parse(self._columns)
        columns = {name: Column(name, type_) for name, type_ in self._columns.items()}
        queue = self._open()
        num_bytes = 0
        try:
            writer = PartWriter(schema, shard_bytes=self._options.shard_bytes, queue=queue)
            for block in blocks:
                for row in BlockAccessor.for_block(block).iter_rows(public_row_format=True):
                    sample = {name: _value(row, column) for name, column in columns.items()}
                    writer.write(sample)
                    num_bytes += num_value_bytes(sample)
            shards = writer.finish()
        finally:
            queue.close()
        return WrittenPart(number=int(ctx.task_idx), num_samples=writer.num_samples, num_bytes=num_bytes, shards=shards)

    def on_write_complete(self, write_result: Any) -> None:
        """Commits the shards of all tasks, in the order of the tasks."""
        if self._plan is None:  # the pipeline had no rows
            self.on_write_start()
        assert self._plan is not None
        parts = sorted(write_result.write_returns, key=lambda part: part.number)
        repeated = sorted(number for number, count in Counter(part.number for part in parts).items() if count > 1)
        if repeated:
            raise ConfigurationError("Ray returned a write task more than once", got=repeated[:10])
        queue = self._open()
        try:
            commit = PartsCommit(self._plan, queue, num_parts=len(parts))
            for number, part in enumerate(parts):
                commit.add(part, number=number)
            self.report = commit.finish()
        finally:
            queue.close()

    def _open(self) -> UploadQueue:
        return UploadQueue(self._target.open(), in_flight=self._target.uploads_in_flight)


def _value(row: Mapping[str, Any], column: Column) -> object:
    if column.name not in row:
        raise SchemaError("the rows have no such column", column=column.name, got=", ".join(list(row)[:20]))
    try:
        return convert(row[column.name], column)
    except ValueError as error:
        raise SchemaError(f"the value is not {column.type}: {error}", column=column.name) from error
