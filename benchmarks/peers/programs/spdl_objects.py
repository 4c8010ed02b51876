"""SPDL: a pipeline of threads over one object per image, fetched by boto3 and decoded without the interpreter's lock.

Settings from https://facebookresearch.github.io/spdl/latest/getting_started/concurrency.html and its guide to building
data loaders: waiting (fetching, in a pool of its own) is kept apart from computing (decoding, as many threads as there
are to be), the sink holds a few batches. ``decoder`` is "torchvision", which every peer has, or "spdl": its own, which
needs FFmpeg's shared libraries from the system.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.config import Config
from spdl.pipeline import Pipeline, PipelineBuilder

from benchmarks.peers.images import SIZE, Treat, collate
from benchmarks.peers.messages import Job

_Sample = tuple[Any, int]


def open_loader(job: Job) -> _Loader:
    """The pipeline; threads start with the first batch."""
    return _Loader(job)


class _Loader:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._num_fetchers: int = job.options.get("num_fetchers", 32)
        self._client = boto3.client(
            "s3",
            endpoint_url=job.endpoint_url,
            region_name=job.region,
            aws_access_key_id=job.access_key_id,
            aws_secret_access_key=job.secret_access_key,
            config=Config(
                s3={"addressing_style": "path"},
                retries={"mode": "standard"},
                max_pool_connections=self._num_fetchers,
            ),
        )
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=job.bucket, Prefix=f"{job.prefix}/")
        self._keys = sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))
        self._fetchers = ThreadPoolExecutor(self._num_fetchers, thread_name_prefix="fetch")
        self._decode = _decoder(job)
        self._pipeline = self._build()

    def _build(self) -> Pipeline[Any]:
        job = self._job
        numbers = list(range(len(self._keys)))
        random.Random(job.seed).shuffle(numbers)
        builder = (
            PipelineBuilder()
            .add_source(numbers)
            .pipe(self._fetch, concurrency=self._num_fetchers, executor=self._fetchers)
        )
        if job.decoded:
            builder = builder.pipe(self._decode, concurrency=job.num_workers)
        return builder.aggregate(job.batch_size).pipe(collate).add_sink(4).build(num_threads=job.num_workers)

    def _fetch(self, number: int) -> _Sample:
        return self._client.get_object(Bucket=self._job.bucket, Key=self._keys[number])["Body"].read(), number

    def __iter__(self) -> Iterator[Any]:
        with self._pipeline.auto_stop():
            yield from self._pipeline

    def state(self) -> None:
        """Has none: an interrupted epoch is begun again."""

    def close(self) -> None:
        """Threads and connections."""
        self._pipeline.stop()
        self._fetchers.shutdown()
        self._client.close()


def _decoder(job: Job) -> Any:
    """What decodes a sample: ``decoder`` is spdl's own, or torchvision's, which the other peers have."""
    if job.options.get("decoder", "torchvision") == "spdl":
        return _spdl_decode
    treat = Treat(job)
    return lambda sample: (treat(sample[0]), sample[1])


def _spdl_decode(sample: _Sample) -> _Sample:
    """A random crop of 8 to 100 % of the area, at 3:4 to 4:3, scaled, and flipped every other time, all by FFmpeg."""
    import spdl.io  # without FFmpeg not even this succeeds

    data, number = sample
    packets = spdl.io.demux_image(data)
    left, top, width, height = _crop(packets.width, packets.height)
    flip = ",hflip" if random.random() < 0.5 else ""
    frames = spdl.io.decode_packets(
        packets,
        filter_desc=f"crop={width}:{height}:{left}:{top}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear{flip},format=rgb24",
    )
    return spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(2, 0, 1), number


def _crop(width: int, height: int) -> tuple[int, int, int, int]:
    """What torchvision's RandomResizedCrop draws."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return random.randint(0, width - wide), random.randint(0, height - high), wide, high
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side
