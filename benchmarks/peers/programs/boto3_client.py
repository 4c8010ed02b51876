"""boto3's client for those who read one object per image, and the keys that it lists."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.job import Job


def connect(job: Job, **config: Any) -> Any:
    """Makes a client that leads to a job's bucket."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=job.endpoint_url,
        region_name=job.region,
        aws_access_key_id=job.access_key_id,
        aws_secret_access_key=job.secret_access_key,
        config=Config(s3={"addressing_style": "path"}, retries={"mode": "standard"}, **config),
    )


def listed_keys(client: Any, job: Job) -> list[str]:
    """Returns the keys below a job's prefix, sorted."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=job.bucket, Prefix=f"{job.prefix}/")
    return sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))
