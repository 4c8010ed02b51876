"""Importers of other dataset formats, one per module; "Add an importer" in CONTRIBUTING.md lists the steps.

Classes are imported on first use, because the command line reads `FORMATS` and starts without any client of a store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from concurrent_loader.storage.importers.import_format import ImportFormat, ImportOption

if TYPE_CHECKING:
    from concurrent_loader.storage.importers.adopted_files import LitDataChunks, MDSShards, TFRecordFiles
    from concurrent_loader.storage.importers.arrow_files import ArrowFiles
    from concurrent_loader.storage.importers.coco import CocoDataset
    from concurrent_loader.storage.importers.datadings import DatadingsFiles
    from concurrent_loader.storage.importers.hdf5 import HDF5Files
    from concurrent_loader.storage.importers.image_folder import ImageFolder
    from concurrent_loader.storage.importers.lance_dataset import LanceDataset
    from concurrent_loader.storage.importers.lmdb_database import LMDBDatabase
    from concurrent_loader.storage.importers.media_folder import AudioFolder, VideoFolder
    from concurrent_loader.storage.importers.parquet import ParquetFiles
    from concurrent_loader.storage.importers.protocol import (
        ImportedSample,
        Importer,
        ImportProblem,
        ImportScan,
        SampleSource,
    )
    from concurrent_loader.storage.importers.python_generator import PythonGenerator
    from concurrent_loader.storage.importers.tar import TarFiles
    from concurrent_loader.storage.importers.text_files import TextFiles
    from concurrent_loader.storage.importers.zarr_group import ZarrGroup

__all__ = [
    "FORMATS",
    "ArrowFiles",
    "AudioFolder",
    "CocoDataset",
    "DatadingsFiles",
    "HDF5Files",
    "ImageFolder",
    "ImportFormat",
    "ImportOption",
    "ImportProblem",
    "ImportScan",
    "ImportedSample",
    "Importer",
    "LMDBDatabase",
    "LanceDataset",
    "LitDataChunks",
    "MDSShards",
    "ParquetFiles",
    "PythonGenerator",
    "SampleSource",
    "TFRecordFiles",
    "TarFiles",
    "TextFiles",
    "VideoFolder",
    "ZarrGroup",
]

FORMATS = (
    ImportFormat(
        "audio-folder",
        "media_folder",
        "AudioFolder",
        "Import a folder of audio files: wav, flac, mp3, opus.",
        source="Folder, perhaps with one sub-folder per class: path or URL.",
    ),
    ImportFormat("arrow", "arrow_files", "ArrowFiles", "Import Arrow IPC files and streams."),
    ImportFormat(
        "coco",
        "coco",
        "CocoDataset",
        "Import images with COCO's annotations: boxes, classes, masks, keypoints, captions.",
        (
            ImportOption("images", "Folder of the images. Required.", is_stored=True),
            ImportOption("captions", "Another JSON file of the same images, with captions.", is_stored=True),
            ImportOption("boxes", "Form of a box: xyxy (default: two corners) or xywh (as in COCO)."),
            ImportOption("verify", "How to check each image: decode it (default), read its header, or none."),
        ),
        source="JSON file: path or URL.",
    ),
    ImportFormat("datadings", "datadings", "DatadingsFiles", "Import msgpack files of datadings."),
    ImportFormat(
        "hdf5",
        "hdf5",
        "HDF5Files",
        "Import HDF5 files: datasets of the same length become columns.",
        (ImportOption("group", "Path of the group. Default: the root."),),
    ),
    ImportFormat(
        "lance",
        "lance_dataset",
        "LanceDataset",
        "Import a Lance dataset.",
        (ImportOption("version", "Number of the version. Default: the newest."),),
        source="Folder of the dataset: path or URL.",
    ),
    ImportFormat(
        "litdata",
        "adopted_files",
        "LitDataChunks",
        "Import chunks of LitData.",
        (ImportOption("block_size", "Tokens per sample, for chunks of TokensLoader. Default: as they were written."),),
        source="Folder with index.json: path or URL.",
    ),
    ImportFormat(
        "lmdb",
        "lmdb_database",
        "LMDBDatabase",
        "Import an LMDB database on a local drive.",
        (ImportOption("database", "Name of a database inside the file. Default: the unnamed one."),),
        source="Folder with data.mdb, or file of the database.",
    ),
    ImportFormat(
        "mds",
        "adopted_files",
        "MDSShards",
        "Import MDS, the format of MosaicML Streaming.",
        source="Folder with index.json: path or URL.",
    ),
    ImportFormat("parquet", "parquet", "ParquetFiles", "Import Parquet files, such as Hugging Face datasets."),
    ImportFormat(
        "python",
        "python_generator",
        "PythonGenerator",
        "Import the dicts that a Python function yields.",
        (ImportOption("arg", "Argument of the function, NAME=VALUE, passed as text. May be repeated.", is_list=True),),
        source="Function that yields a dict per sample.",
        metavar="MODULE:FUNCTION",
        is_stored=False,
    ),
    ImportFormat("tar", "tar", "TarFiles", "Import WebDataset tar files, also compressed ones (.gz, .bz2, .zst, .xz)."),
    ImportFormat("tfrecord", "adopted_files", "TFRecordFiles", "Import TFRecord files of tf.train.Example."),
    ImportFormat(
        "text",
        "text_files",
        "TextFiles",
        "Import documents of JSON lines, plain text (both also .gz and .zst) or Parquet, as texts or as tokens.",
        (
            ImportOption("field", "Field or column with the text. Default: text."),
            ImportOption("per", "Part of a plain text that is a document: file (default), line or paragraph."),
            ImportOption("tokenizer", "Function from a text to its tokens, MODULE:FUNCTION. Default: keep the text."),
        ),
    ),
    ImportFormat(
        "video-folder",
        "media_folder",
        "VideoFolder",
        "Import a folder of videos (mp4, webm), with an index of their groups of pictures.",
        source="Folder, perhaps with one sub-folder per class: path or URL.",
    ),
    ImportFormat(
        "zarr",
        "zarr_group",
        "ZarrGroup",
        "Import a Zarr group: arrays of the same length become columns.",
        (ImportOption("group", "Path of a group below the source. Default: the source itself."),),
        source="Folder of the group: path or URL.",
    ),
)
"""Formats of `concurrent-loader ingest`, besides image folders: name, module, class, help and options of each."""

_HOMES = {
    "ImageFolder": "image_folder",
    "ImportProblem": "protocol",
    "ImportScan": "protocol",
    "ImportedSample": "protocol",
    "Importer": "protocol",
    "SampleSource": "protocol",
    **{row.class_name: row.module for row in FORMATS},
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
