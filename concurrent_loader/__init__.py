"""Train from a bucket as fast as from a local drive: batches for torch from shards in object storage.

Everything that a training script needs can be imported from here. Stores, fetching and the shard format are in
`concurrent_loader.storage`; servers and faults for tests are in `concurrent_loader.storage.testing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent_loader.accelerate import skip_first_batches, take_over
    from concurrent_loader.augment import (
        Augment,
        CenterCrop,
        ColorJitter,
        CutMix,
        GaussianBlur,
        Linked,
        MixUp,
        MixUpOrCutMix,
        Normalize,
        RandomGrayscale,
        RandomHorizontalFlip,
        RandomResizedCrop,
        RandomVerticalFlip,
        ToDtype,
    )
    from concurrent_loader.batch.batch import Batch
    from concurrent_loader.batch.collate import collate
    from concurrent_loader.batch.packed_tokens import PackedTokens
    from concurrent_loader.batch.ragged import Pad
    from concurrent_loader.datasets.mixture import Mixture
    from concurrent_loader.datasets.object_dataset import ObjectDataset
    from concurrent_loader.datasets.shard_dataset import ShardDataset
    from concurrent_loader.datasets.views import DatasetView
    from concurrent_loader.errors import (
        CollateError,
        DecodeError,
        DeviceError,
        DeviceMemoryError,
        LoaderError,
        LoaderStateError,
        LoaderTimeout,
        TooManyDecodeErrors,
        TransformError,
        WorkerCountError,
        WorkerDied,
    )
    from concurrent_loader.loader import ConcurrentDataLoader
    from concurrent_loader.map_style.loader import DropInDataLoader
    from concurrent_loader.media import Audio, Clips
    from concurrent_loader.metrics.json_lines import JsonLinesMetrics
    from concurrent_loader.metrics.lightning import lightning_callback
    from concurrent_loader.metrics.logged import LoggedMetrics
    from concurrent_loader.metrics.notebook import NotebookMetrics
    from concurrent_loader.metrics.observe import observe
    from concurrent_loader.metrics.open_telemetry import OpenTelemetryMetrics
    from concurrent_loader.metrics.prometheus import PrometheusMetrics
    from concurrent_loader.metrics.tensorboard import TensorBoardMetrics
    from concurrent_loader.native_loader import NativeDataLoader
    from concurrent_loader.order.batching import ByLength
    from concurrent_loader.order.packing import Packed
    from concurrent_loader.order.sampling import Balanced, Weighted
    from concurrent_loader.pipeline.sample_context import SampleContext
    from concurrent_loader.stats.loader_stats import LoaderStats
    from concurrent_loader.storage import (
        AccessDenied,
        AlreadyExists,
        CommitConflict,
        ConfigurationError,
        ConnectionFailed,
        CorruptData,
        CredentialsExpired,
        DatasetChanged,
        DeadlineExceeded,
        DigestMismatch,
        FormatError,
        HedgePolicy,
        ImageFolder,
        InvalidRange,
        NotFound,
        ObjectChanged,
        ProtocolViolation,
        RetryPolicy,
        S3Credentials,
        SchemaError,
        ServerError,
        ShardWriter,
        SnapshotDeleted,
        StorageError,
        StoreClosed,
        StoreError,
        Throttled,
        TransientError,
        TruncatedBody,
        load_manifest,
        open_store,
        verify_dataset,
    )
    from concurrent_loader.storage.adopt import adopt, convert
    from concurrent_loader.storage.columns import add_column, add_columns, drop_column, rename_column
    from concurrent_loader.storage.exporters.export import export
    from concurrent_loader.storage.importers.ingest import ingest
    from concurrent_loader.storage.importers.parts import plan_parts, write_part
    from concurrent_loader.storage.importers.parts_commit import commit_parts

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "Audio",
    "Augment",
    "Balanced",
    "Batch",
    "ByLength",
    "CenterCrop",
    "Clips",
    "CollateError",
    "ColorJitter",
    "CommitConflict",
    "ConcurrentDataLoader",
    "ConfigurationError",
    "ConnectionFailed",
    "CorruptData",
    "CredentialsExpired",
    "CutMix",
    "DatasetChanged",
    "DatasetView",
    "DeadlineExceeded",
    "DecodeError",
    "DeviceError",
    "DeviceMemoryError",
    "DigestMismatch",
    "DropInDataLoader",
    "FormatError",
    "GaussianBlur",
    "HedgePolicy",
    "ImageFolder",
    "InvalidRange",
    "JsonLinesMetrics",
    "Linked",
    "LoaderError",
    "LoaderStateError",
    "LoaderStats",
    "LoaderTimeout",
    "LoggedMetrics",
    "MixUp",
    "MixUpOrCutMix",
    "Mixture",
    "NativeDataLoader",
    "Normalize",
    "NotFound",
    "NotebookMetrics",
    "ObjectChanged",
    "ObjectDataset",
    "OpenTelemetryMetrics",
    "Packed",
    "PackedTokens",
    "Pad",
    "PrometheusMetrics",
    "ProtocolViolation",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "RetryPolicy",
    "S3Credentials",
    "SampleContext",
    "SchemaError",
    "ServerError",
    "ShardDataset",
    "ShardWriter",
    "SnapshotDeleted",
    "StorageError",
    "StoreClosed",
    "StoreError",
    "TensorBoardMetrics",
    "Throttled",
    "ToDtype",
    "TooManyDecodeErrors",
    "TransformError",
    "TransientError",
    "TruncatedBody",
    "Weighted",
    "WorkerCountError",
    "WorkerDied",
    "add_column",
    "add_columns",
    "adopt",
    "collate",
    "commit_parts",
    "convert",
    "drop_column",
    "export",
    "ingest",
    "lightning_callback",
    "load_manifest",
    "observe",
    "open_store",
    "plan_parts",
    "rename_column",
    "skip_first_batches",
    "take_over",
    "verify_dataset",
    "write_part",
]

_EXPORTS = {
    "concurrent_loader.accelerate": ("skip_first_batches", "take_over"),
    "concurrent_loader.augment": (
        "Augment",
        "CenterCrop",
        "ColorJitter",
        "CutMix",
        "GaussianBlur",
        "Linked",
        "MixUp",
        "MixUpOrCutMix",
        "Normalize",
        "RandomGrayscale",
        "RandomHorizontalFlip",
        "RandomResizedCrop",
        "RandomVerticalFlip",
        "ToDtype",
    ),
    "concurrent_loader.batch.batch": ("Batch",),
    "concurrent_loader.batch.collate": ("collate",),
    "concurrent_loader.batch.packed_tokens": ("PackedTokens",),
    "concurrent_loader.batch.ragged": ("Pad",),
    "concurrent_loader.media": ("Audio", "Clips"),
    "concurrent_loader.datasets.mixture": ("Mixture",),
    "concurrent_loader.datasets.object_dataset": ("ObjectDataset",),
    "concurrent_loader.datasets.shard_dataset": ("ShardDataset",),
    "concurrent_loader.datasets.views": ("DatasetView",),
    "concurrent_loader.errors": (
        "CollateError",
        "DecodeError",
        "DeviceError",
        "DeviceMemoryError",
        "LoaderError",
        "LoaderStateError",
        "LoaderTimeout",
        "TooManyDecodeErrors",
        "TransformError",
        "WorkerCountError",
        "WorkerDied",
    ),
    "concurrent_loader.loader": ("ConcurrentDataLoader",),
    "concurrent_loader.map_style.loader": ("DropInDataLoader",),
    "concurrent_loader.metrics.json_lines": ("JsonLinesMetrics",),
    "concurrent_loader.metrics.lightning": ("lightning_callback",),
    "concurrent_loader.metrics.logged": ("LoggedMetrics",),
    "concurrent_loader.metrics.notebook": ("NotebookMetrics",),
    "concurrent_loader.metrics.observe": ("observe",),
    "concurrent_loader.metrics.open_telemetry": ("OpenTelemetryMetrics",),
    "concurrent_loader.metrics.prometheus": ("PrometheusMetrics",),
    "concurrent_loader.metrics.tensorboard": ("TensorBoardMetrics",),
    "concurrent_loader.native_loader": ("NativeDataLoader",),
    "concurrent_loader.pipeline.sample_context": ("SampleContext",),
    "concurrent_loader.order.batching": ("ByLength",),
    "concurrent_loader.order.packing": ("Packed",),
    "concurrent_loader.order.sampling": ("Balanced", "Weighted"),
    "concurrent_loader.stats.loader_stats": ("LoaderStats",),
    "concurrent_loader.storage": (
        "AccessDenied",
        "AlreadyExists",
        "CommitConflict",
        "ConfigurationError",
        "ConnectionFailed",
        "CorruptData",
        "CredentialsExpired",
        "DatasetChanged",
        "DeadlineExceeded",
        "DigestMismatch",
        "FormatError",
        "HedgePolicy",
        "ImageFolder",
        "InvalidRange",
        "NotFound",
        "ObjectChanged",
        "ProtocolViolation",
        "RetryPolicy",
        "S3Credentials",
        "SchemaError",
        "ServerError",
        "ShardWriter",
        "SnapshotDeleted",
        "StorageError",
        "StoreClosed",
        "StoreError",
        "Throttled",
        "TransientError",
        "TruncatedBody",
        "load_manifest",
        "open_store",
        "verify_dataset",
    ),
    "concurrent_loader.storage.adopt": ("adopt", "convert"),
    "concurrent_loader.storage.columns": ("add_column", "add_columns", "drop_column", "rename_column"),
    "concurrent_loader.storage.exporters.export": ("export",),
    "concurrent_loader.storage.importers.ingest": ("ingest",),
    "concurrent_loader.storage.importers.parts": ("plan_parts", "write_part"),
    "concurrent_loader.storage.importers.parts_commit": ("commit_parts",),
}
_HOMES = {name: home for home, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> object:
    """Imports a name when it is first used, so that the command line starts without torch."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
