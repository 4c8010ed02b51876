"""One side of `benchmarks.ingest`: writes images in one format, in a fresh process of its own environment.

`benchmarks.adopt` has its scans done here as well.

The task is a line of JSON on standard input, the figures one on standard output. The clock starts after the imports.
Rivals follow their documentation, with as many processes as the task says: ``litdata.optimize``, one ``MDSWriter`` or
one ``ShardWriter`` of WebDataset per process, and ``Dataset.from_generator`` with ``to_parquet``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.machine import cpu_of_tree_s, peak_rss_bytes

_CHUNK_BYTES = 64_000_000  # the rivals' usual size
Task = dict[str, Any]


def _read(path: str) -> dict[str, Any]:
    return {"image": Path(path).read_bytes(), "number": int(Path(path).stem.rpartition("-")[2])}


def _samples(paths: list[str]) -> Iterator[dict[str, Any]]:
    return map(_read, paths)


def ours(task: Task) -> Callable[[], dict[str, Any]]:
    """Imports an image folder."""
    from concurrent_loader import ImageFolder, ingest, open_store

    options: dict[str, Any] = {"workers": task["processes"]}
    if task.get("ray"):
        import ray

        ray.init(num_cpus=task["processes"], log_to_driver=False)
        options["engine"] = "ray"

    def run() -> dict[str, Any]:
        source = ImageFolder(open_store(task["photos"]), verify=task["verify"])
        report = ingest(source, task["folder"], **options)
        assert report.num_samples == task["count"]
        return {"num_shards": len(report.manifest.shards), "num_bundles": len(report.manifest.bundles)}

    return run


def tiny(task: Task) -> Callable[[], dict[str, Any]]:
    """Imports many tiny dicts of a Python function, for the memory."""
    from concurrent_loader import ingest

    class Numbers:
        columns = {"label": "int64", "text": "str"}  # noqa: RUF012 - of an object that is used once

        def __iter__(self) -> Iterator[dict[str, Any]]:
            return ({"label": number % 1000, "text": f"sample {number}"} for number in range(task["count"]))

    return lambda: {"num_shards": len(ingest(Numbers(), task["folder"]).manifest.shards)}


def scan(task: Task) -> Callable[[], dict[str, Any]]:
    """Adopts a dataset of another format."""
    from concurrent_loader.storage.adopt import adopt

    def run() -> dict[str, Any]:
        report = adopt(task["format"], task["source"], task["index"], storage_options=task["options"])
        return {"mb": report.plan.num_bytes / 1e6, "samples": report.num_samples, "columns": len(report.plan.columns)}

    return run


def litdata(task: Task) -> Callable[[], dict[str, Any]]:
    """LitData."""
    import litdata as library

    options: dict[str, Any] = {"chunk_bytes": _CHUNK_BYTES, "num_workers": task["processes"], "verbose": False}
    return lambda: library.optimize(_read, _paths(task), task["folder"], **options) or {}


def mosaicml(task: Task) -> Callable[[], dict[str, Any]]:
    """MosaicML Streaming: a writer per process, and ``merge_index``, as its documentation shows."""
    from streaming.base.util import merge_index

    def run() -> dict[str, Any]:
        done = _in_processes(_write_mds, task)
        merge_index(task["folder"])
        return done

    return run


def _write_mds(folder: str, paths: list[str]) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=folder, columns={"image": "bytes", "number": "int64"}, size_limit=1 << 26) as writer:
        for sample in _samples(paths):
            writer.write(sample)


def webdataset(task: Task) -> Callable[[], dict[str, Any]]:
    """WebDataset: a writer per process."""
    import webdataset as library  # noqa: F401 - before the clock starts, and known to the forked processes

    return lambda: _in_processes(_write_tars, task)


def _write_tars(folder: str, paths: list[str]) -> None:
    import webdataset as library

    Path(folder).mkdir(parents=True)
    with library.ShardWriter(f"{folder}/%06d.tar", maxsize=_CHUNK_BYTES, maxcount=10**9, verbose=0) as writer:
        for sample in _samples(paths):
            writer.write({"__key__": f"{sample['number']:07d}", "jpg": sample["image"]})


def hf_datasets(task: Task) -> Callable[[], dict[str, Any]]:
    """Hugging Face datasets."""
    import datasets as library

    def run() -> dict[str, Any]:
        made = library.Dataset.from_generator(
            _samples, gen_kwargs={"paths": _paths(task)}, num_proc=task["processes"],
            cache_dir=f"{task['folder']}/cache",
        )  # fmt: skip
        made.to_parquet(f"{task['folder']}/train.parquet")
        return {}

    return run


def _paths(task: Task) -> list[str]:
    return sorted(map(str, Path(task["photos"]).glob("*/*.jpg")))


def _in_processes(write: Callable[[str, list[str]], None], task: Task) -> dict[str, Any]:
    paths, number = _paths(task), task["processes"]
    starts = [len(paths) * at // number for at in range(number + 1)]
    with multiprocessing.get_context("fork").Pool(number) as pool:
        parts = [(f"{task['folder']}/{at}", paths[starts[at] : starts[at + 1]]) for at in range(number)]
        pool.starmap(write, parts, chunksize=1)
        pool.close()
        pool.join()
    return {}


def main() -> None:
    """Does the task."""
    task = json.load(sys.stdin)
    run = globals()[task["writer"]](task)
    os.sync()  # what others left unwritten
    cpu_s, began = cpu_of_tree_s(), perf_counter()
    facts = run()
    found = {"wall_s": perf_counter() - began, "cpu_s": cpu_of_tree_s() - cpu_s, "rss_mb": peak_rss_bytes() / 1e6}
    os.sync()
    print(json.dumps({**facts, **found, "durable_s": perf_counter() - began}))


if __name__ == "__main__":
    main()
