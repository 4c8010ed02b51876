"""Where bytes live: one protocol, five backends; see `open_store`."""

from storage.stores.credentials import S3Credentials
from storage.stores.local import LocalStore
from storage.stores.memory import MemoryStore
from storage.stores.opening import open_store
from storage.stores.protocol import Buffer, GetResult, ObjectMeta, Store, check_key

__all__ = [
    "Buffer",
    "GetResult",
    "LocalStore",
    "MemoryStore",
    "ObjectMeta",
    "S3Credentials",
    "Store",
    "check_key",
    "open_store",
]
