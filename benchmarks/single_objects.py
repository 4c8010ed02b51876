"""Torch datasets as people write them: one GET an item, by the client that they happen to use."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import botocore.session
import obstore
import torch
from botocore.config import Config
from obstore.store import S3Store
from torch import Tensor
from torch.utils.data import Dataset

OBJECT_BYTES = 115_000
NUM_OBJECTS = 256
Item = tuple[int, Tensor]


def key_of(number: int) -> str:
    """An item's key; further items are the same objects again."""
    return f"objects/{number % NUM_OBJECTS:04d}"


class _Objects(Dataset[Item], ABC):
    """Makes its client when a process first needs it: none survives a fork, and several threads may need it at once."""

    def __init__(self, bucket: str, options: Mapping[str, str], length: int, connections: int) -> None:
        self._bucket = bucket
        self._options = dict(options)
        self._length = length
        self._connections = connections
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
        """Gets an object."""

    @abstractmethod
    def _make(self) -> Any: ...


class BotocoreObjects(_Objects):
    """With ``get_object().read()`` of botocore, which is boto3's."""

    def read(self, key: str) -> bytes:
        """Gets an object, blocking."""
        data: bytes = self._client().get_object(Bucket=self._bucket, Key=key)["Body"].read()
        return data

    def _make(self) -> Any:
        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self._options["endpoint_url"],
            region_name=self._options.get("region", "us-east-1"),
            aws_access_key_id=self._options["access_key_id"],
            aws_secret_access_key=self._options["secret_access_key"],
            # botocore's default is 10: each further request would open a connection and throw it away.
            config=Config(s3={"addressing_style": "path"}, max_pool_connections=self._connections),
        )


class ObstoreObjects(_Objects):
    """With obstore's blocking ``get``, whose work is done outside the interpreter's lock."""

    def read(self, key: str) -> Any:
        """Gets an object, blocking."""
        return obstore.get(self._client(), key).bytes()

    def _make(self) -> Any:
        return S3Store(
            self._bucket,
            endpoint=self._options["endpoint_url"],
            region=self._options.get("region", "us-east-1"),
            access_key_id=self._options["access_key_id"],
            secret_access_key=self._options["secret_access_key"],
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )


class AsyncObstoreObjects(ObstoreObjects):
    """With obstore's coroutine where the loader knows what to do with it."""

    async def getitem_async(self, index: int) -> Item:
        """Brings an item."""
        return _item(index, await self.read_async(key_of(index)))

    async def read_async(self, key: str) -> Any:
        """Gets an object."""
        return await (await obstore.get_async(self._client(), key)).bytes_async()


CLIENTS: dict[str, Callable[[str, Mapping[str, str], int, int], Dataset[Item]]] = {
    "botocore": BotocoreObjects,
    "obstore": ObstoreObjects,
    "obstore async": AsyncObstoreObjects,
}


def _item(index: int, data: Any) -> Item:
    if len(data) != OBJECT_BYTES or int.from_bytes(bytes(data[:4]), "little") != index % NUM_OBJECTS:
        raise AssertionError(f"item {index} has the wrong bytes")
    return index, torch.frombuffer(bytearray(data), dtype=torch.uint8)
