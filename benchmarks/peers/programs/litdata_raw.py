"""LitData's StreamingRawDataset: one object per image, no conversion, many downloads at once in each worker.

https://github.com/Lightning-AI/litData, "Stream raw datasets": torch's DataLoader around it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import PurePosixPath
from typing import Any

import litdata

from benchmarks.peers.images import Treat, collate
from benchmarks.peers.messages import Job
from benchmarks.peers.programs.litdata_chunks import permit_http
from benchmarks.peers.torch_loader import TorchLoader


class _Numbered(litdata.StreamingRawDataset):  # type: ignore[misc]
    """Gives (bytes, number): the number is the object's place in the listing."""

    def __getitems__(self, indices: list[int]) -> Any:
        return list(zip(super().__getitems__(indices), indices, strict=True))


def open_loader(job: Job) -> TorchLoader:
    """The dataset in torch's DataLoader."""
    permit_http()
    # It lists by s3fs and reads by boto3's options, which call the keys otherwise: both find them here.
    os.environ |= {
        "AWS_ACCESS_KEY_ID": job.access_key_id,
        "AWS_SECRET_ACCESS_KEY": job.secret_access_key,
        "AWS_REGION": job.region,
    }
    dataset = _Numbered(
        f"s3://{job.bucket}/{job.prefix}/",
        cache_dir=tempfile.mkdtemp(),  # where it keeps its index: by default in the home folder, from run to run
        recompute_index=True,
        storage_options={"endpoint_url": job.endpoint_url},
        transform=Treat(job),
    )
    numbers = [int(PurePosixPath(file.path).stem) for file in dataset.files]

    def put_together(samples: list[Any]) -> Any:
        return collate([(image, numbers[place]) for image, place in samples])

    return TorchLoader(dataset, job, collate_fn=put_together)
