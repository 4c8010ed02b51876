"""Object stores behind one protocol; `open_store` opens one from a URL."""

from concurrent_loader.storage.stores.aws.credentials import S3Credentials
from concurrent_loader.storage.stores.backends.local import LocalStore
from concurrent_loader.storage.stores.backends.memory import MemoryStore
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.objects import Buffer, GetResult, ObjectMeta, check_key
from concurrent_loader.storage.stores.store import Store

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
