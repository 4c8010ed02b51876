"""Where the same photographs are: files, objects and shards, on the local drive and in a bucket; and in what order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class Where:
    """Where everything is."""

    root: str  # the image folder
    names: tuple[str, ...]  # of the images below it, sorted; their place is their number
    labels: tuple[int, ...]  # their classes
    local_shards: str  # shards on the local drive
    bucket: str  # its name
    options: Mapping[str, str] = field(repr=False)  # has the secret key
    objects: str = "objects"  # prefix of the images in the bucket
    shards: str = "shards"  # prefix of the shards in the bucket

    @property
    def objects_url(self) -> str:
        """Of the images in the bucket."""
        return f"s3://{self.bucket}/{self.objects}"

    @property
    def shards_url(self) -> str:
        """Of the shards in the bucket."""
        return f"s3://{self.bucket}/{self.shards}"


def order_of(num_samples: int, limit: int | None) -> list[int]:
    """The numbers in the order in which all sides that go by item read them; a limit takes the first ones."""
    order: list[int] = torch.randperm(num_samples, generator=torch.Generator().manual_seed(0)).tolist()
    return order[:limit]
