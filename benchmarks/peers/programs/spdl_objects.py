"""SPDL: a pipeline of threads over one object per image, fetched by boto3 and decoded without the interpreter's lock.

Settings from https://facebookresearch.github.io/spdl/latest/getting_started/concurrency.html and its guide to building
data loaders: waiting (fetching, in a pool of its own) is kept apart from computing (decoding, as many threads as there
are to be), the sink holds a few batches. torchvision decodes, as for every peer: SPDL's own decoder needs FFmpeg's
shared libraries from the system.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spdl.pipeline import Pipeline, PipelineBuilder

from benchmarks.peers.job import Job, Loader, Treat, collate
from benchmarks.peers.programs.torch_items import connect, listed_keys

_NUM_FETCHERS = 32
_Sample = tuple[Any, int]


def open_loader(job: Job) -> Loader:
    """Makes the pipeline; threads start with the first batch."""
    client = connect(job, max_pool_connections=_NUM_FETCHERS)
    keys = listed_keys(client, job)

    def fetch(number: int) -> _Sample:
        return client.get_object(Bucket=job.bucket, Key=keys[number])["Body"].read(), number

    numbers = list(range(len(keys)))
    random.Random(job.seed).shuffle(numbers)
    fetchers = ThreadPoolExecutor(_NUM_FETCHERS, thread_name_prefix="fetch")
    builder = PipelineBuilder().add_source(numbers).pipe(fetch, concurrency=_NUM_FETCHERS, executor=fetchers)
    treat = Treat(job)
    if job.decoded:
        builder = builder.pipe(lambda sample: (treat(sample[0]), sample[1]), concurrency=job.num_workers)
    pipeline = builder.aggregate(job.batch_size).pipe(collate).add_sink(4).build(num_threads=job.num_workers)
    return _Loader(pipeline, fetchers, client)


class _Loader(Loader):
    def __init__(self, pipeline: Pipeline[Any], fetchers: ThreadPoolExecutor, client: Any) -> None:
        super().__init__(pipeline)
        self._fetchers = fetchers
        self._client = client

    def __iter__(self) -> Iterator[Any]:
        with self._loader.auto_stop():
            yield from self._loader

    def close(self) -> None:
        """Ends threads and connections."""
        self._loader.stop()
        self._fetchers.shutdown()
        self._client.close()
