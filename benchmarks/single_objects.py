"""Torch datasets as people write them: one GET per item, by the client that they happen to use."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import obstore
import torch
from obstore.store import S3Store
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.bucket import botocore_client

OBJECT_BYTES = 115_000
NUM_OBJECTS = 256
Item = tuple[int, Tensor]


def key_of(number: int) -> str:
    """Returns an item's key; further items are the same objects again."""
    return f"objects/{number % NUM_OBJECTS:04d}"


class _Objects(Dataset[Item], ABC):
    """Makes its client when a process first needs it: clients do not survive a fork, and threads share them."""

    def __init__(self, bucket: str, options: Mapping[str, str], length: int, connections: int) -> None:
        self._bucket = bucket
        self._options = dict(options)  # endpoint and credentials
        self._length = length
        self._connections = connections  # that the client may have open
        self._made: Any = None
        self._pid = 0
        self._making = threading.Lock()

    def __len__(self) -> int:
        return self._length

    def _client(self) -> Any:
        with self._making:
            if self._pid != os.getpid():
                self._made, self._pid = self._make(), os.getpid()
            return self._made

    def __getitem__(self, index: int) -> Item:
        return _item(index, self.read(key_of(index)))

    @abstractmethod
    def read(self, key: str) -> Any:
        """Fetches an object, blocking."""

    @abstractmethod
    def _make(self) -> Any: ...


class BotocoreObjects(_Objects):
    """Reads with ``get_object().read()`` of botocore, which is boto3's."""

    def read(self, key: str) -> bytes:
        data: bytes = self._client().get_object(Bucket=self._bucket, Key=key)["Body"].read()
        return data

    def _make(self) -> Any:
        # botocore's default is 10: each further request would open a connection and discard it.
        return botocore_client(self._options, max_pool_connections=self._connections)


class ObstoreObjects(_Objects):
    """Reads with obstore's blocking ``get``, which works outside the interpreter's lock."""

    def read(self, key: str) -> Any:
        return obstore.get(self._client(), key).bytes()

    def _make(self) -> Any:
        return obstore_client(self._bucket, self._options)


class AsyncObstoreObjects(ObstoreObjects):
    """Reads with obstore's coroutine where the loader supports it."""

    async def getitem_async(self, index: int) -> Item:
        """Fetches an item."""
        return _item(index, await self.read_async(key_of(index)))

    async def read_async(self, key: str) -> Any:
        """Fetches an object."""
        return await (await obstore.get_async(self._client(), key)).bytes_async()


CLIENTS: dict[str, Callable[[str, Mapping[str, str], int, int], Dataset[Item]]] = {
    "botocore": BotocoreObjects,
    "obstore": ObstoreObjects,
    "obstore async": AsyncObstoreObjects,
}


def obstore_client(bucket: str, options: Mapping[str, Any]) -> S3Store:
    """Makes obstore's client from the options of a store."""
    http = options["endpoint_url"].startswith("http://")
    return S3Store(
        bucket,
        endpoint=options["endpoint_url"],
        region=options.get("region", "us-east-1"),
        access_key_id=options["access_key_id"],
        secret_access_key=options["secret_access_key"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": http, "allow_invalid_certificates": not options.get("verify_tls", True)},
    )


def _item(index: int, data: Any) -> Item:
    if len(data) != OBJECT_BYTES or int.from_bytes(bytes(data[:4]), "little") != index % NUM_OBJECTS:
        raise AssertionError(f"item {index} has the wrong bytes")
    return index, torch.frombuffer(bytearray(data), dtype=torch.uint8)
