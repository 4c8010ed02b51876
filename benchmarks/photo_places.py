"""Where the same photographs are: files, objects and shards, on the local drive and in a bucket; and in what order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

__all__ = ["Where", "order_of"]


@dataclass(frozen=True, slots=True)
class Where:
    """Where everything is.

    Attributes:
        root: The image folder.
        names: Of the pictures below it, sorted; their place is their number.
        labels: Their classes.
        local_shards: Shards on the local drive.
        bucket: Its name.
        options: That lead to it by way of the latency, as for `concurrent_loader.storage.open_store`.
        objects: Prefix of the pictures in the bucket.
        shards: Prefix of the shards in the bucket.
    """

    root: str
    names: tuple[str, ...]
    labels: tuple[int, ...]
    local_shards: str
    bucket: str
    options: Mapping[str, str] = field(repr=False)  # has the secret key
    objects: str = "objects"
    shards: str = "shards"

    @property
    def objects_url(self) -> str:
        """Of the pictures in the bucket."""
        return f"s3://{self.bucket}/{self.objects}"

    @property
    def shards_url(self) -> str:
        """Of the shards in the bucket."""
        return f"s3://{self.bucket}/{self.shards}"


def order_of(num_samples: int, limit: int | None) -> list[int]:
    """The numbers in the order in which all sides that go by item read them; a limit takes the first ones."""
    order: list[int] = torch.randperm(num_samples, generator=torch.Generator().manual_seed(0)).tolist()
    return order[:limit]
