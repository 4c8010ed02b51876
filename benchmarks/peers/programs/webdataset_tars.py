"""WebDataset: tar files, fetched by curl, as its documentation shows for whatever speaks HTTP.

Settings from https://github.com/webdataset/webdataset: shards shuffled and split over the workers, a buffer of samples
shuffled, batches made in the pipeline, `WebLoader`. Tar files of 64 MB, so that each worker has several.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import webdataset

from benchmarks.peers.job import Job, Loader, Treat, collate, treat_fields, written

_SHUFFLE_BUFFER = 1000  # samples; what its examples have


def write(job: Job) -> None:
    """Writes tar files in the job's folder."""
    pattern, tar_bytes = str(Path(job.folder) / "%06d.tar"), job.options.get("tar_bytes", 64_000_000)
    with webdataset.ShardWriter(pattern, maxsize=tar_bytes, maxcount=10**9, verbose=0) as writer:
        for number, data in written(job):
            writer.write({"__key__": f"{number:07d}", "jpg": data})


def open_loader(job: Job) -> Loader:
    """Makes the pipeline in WebLoader."""
    dataset = (
        webdataset.WebDataset(
            job.urls,
            shardshuffle=100,
            seed=job.seed,
            cache_dir=job.cache_dir,
            url_to_name=_name,
            nodesplitter=webdataset.single_node_only,
        )
        .shuffle(_SHUFFLE_BUFFER)
        .map(partial(treat_fields, Treat(job), "jpg", "__key__"))
        .batched(job.batch_size, collation_fn=collate, partial=True)
    )
    return Loader(webdataset.WebLoader(dataset, batch_size=None, num_workers=job.num_workers, prefetch_factor=4))


def _name(url: str) -> str:
    """Returns the file's name, without the signature behind it."""
    return Path(url.partition("?")[0]).name
