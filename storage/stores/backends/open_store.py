"""Opens a store from a URL: chooses the backend and its client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from concurrent_loader.storage.checked_url import remote_meant
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.redaction import redact_url
from concurrent_loader.storage.stores.backends.local import LocalStore
from concurrent_loader.storage.stores.backends.memory import MemoryStore
from concurrent_loader.storage.stores.store import Store

if TYPE_CHECKING:
    from concurrent_loader.storage.stores.options import S3Options

__all__ = ["open_for", "open_store", "takes_no_options"]

_CLIENTS = ("auto", "native", "aiobotocore", "obstore", "fsspec")
_S3 = ("s3", "s3a")
_CLOUDS = ("gs", "gcs", "az", "azure")


@hides_secrets
def open_store(url: str | os.PathLike[str], *, client: str = "auto", **storage_options: Any) -> Store:
    """Opens a store. Sends no request before the first use.

    Args:
        url: ``memory://name``, a path or ``file:///path``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``, or any other
            URL that fsspec knows. URLs are read literally, without percent decoding.
        client: ``"native"`` (this project's client) or ``"aiobotocore"`` for S3, ``"obstore"`` for Google and Azure, or
            ``"fsspec"``. The default, ``"auto"``, uses native for S3, because it is the fastest (figures are in
            docs/how-to/stores.md), obstore for Google and Azure, and fsspec otherwise. With a proxy in the environment
            (``HTTPS_PROXY``), ``"auto"`` uses aiobotocore for S3.
        **storage_options: Options of the store: see `S3Options`, `GoogleOptions` and `AzureOptions`. Memory and local
            stores have none. With fsspec, any option of the file system is accepted as well.

    Returns:
        A new store, which shares no connections with other stores.

    Raises:
        ConfigurationError: The client or an option is unknown, or the client does not support the scheme. Or the URL is
            malformed, contains credentials, or lacks its ``s3://``.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import open_store
        >>> async def first_key():
        ...     async with open_store("images") as store:
        ...         return [meta.key async for meta in store.list("cat/")][0]
        >>> asyncio.run(first_key())
        'cat/0.jpg'
    """
    if isinstance(url, str) and (meant := remote_meant(url)) is not None:
        raise ConfigurationError(
            f"no scheme in the URL: did you mean {redact_url(meant)!r}? (for a new local folder, write './' before it)",
            got=url,
        )
    url = os.fspath(url)
    if client not in _CLIENTS:
        raise ConfigurationError(f"client must be one of {', '.join(_CLIENTS)}", got=client)
    scheme = url.partition("://")[0].lower() if "://" in url else "file"
    if client == "fsspec" or ("::" in scheme and client == "auto"):
        return _open_filesystem(url, storage_options)
    if scheme in ("file", "memory"):
        return _open_here(url, scheme, client, storage_options)
    return _open_cloud(url, scheme, client, storage_options)


def _open_here(url: str, scheme: str, client: str, options: dict[str, Any]) -> Store:
    if client != "auto":
        raise ConfigurationError(f"{client} does not support {scheme}://", url=url)
    if options:
        raise ConfigurationError(f"a {scheme} store has no options, got {', '.join(sorted(options))}", url=url)
    return MemoryStore(url) if scheme == "memory" else LocalStore(url)


def _open_cloud(url: str, scheme: str, client: str, options: dict[str, Any]) -> Store:
    # Imported on demand: together these modules take most of a second to load.
    if scheme in _S3 and client != "obstore":
        from concurrent_loader.storage.stores.options import S3Options, parse_options

        known = parse_options(S3Options, options, url=url)
        if client == "aiobotocore" or (client == "auto" and _has_proxy(known, url)):
            from concurrent_loader.storage.stores.backends.aiobotocore import AiobotocoreStore

            return AiobotocoreStore(url, known)
        from concurrent_loader.storage.stores.backends.s3 import S3Store

        return S3Store(url, known)
    if scheme in _CLOUDS and client in ("auto", "obstore"):
        from concurrent_loader.storage.stores.backends.obstore import ObstoreStore, options_for
        from concurrent_loader.storage.stores.options import parse_options

        kind = options_for(scheme)
        assert kind is not None
        return ObstoreStore(url, parse_options(kind, options, url=url))
    if client == "auto":
        return _open_filesystem(url, options)
    raise ConfigurationError(f"the client {client} does not support {scheme}://", url=url)


def _has_proxy(options: S3Options, url: str) -> bool:
    """Returns whether the environment sets a proxy for the store. The native client does not support proxies."""
    from concurrent_loader.storage.stores.aws.settings import AwsSettings
    from concurrent_loader.storage.stores.backends.obstore_redirects import environment_proxy
    from concurrent_loader.storage.stores.location import Location

    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return False
    settings = AwsSettings.resolve(options, url=url)
    address = settings.address(Location.parse(url).bucket, path_style=options.path_style)
    return environment_proxy(address.server_url) is not None


def _open_filesystem(url: str, options: dict[str, Any]) -> Store:
    from fsspec.registry import known_implementations, registry

    from concurrent_loader.storage.stores.backends.fsspec import FsspecStore

    outermost = url.partition("://")[0].partition("::")[0].lower() if "://" in url else "file"
    if outermost not in known_implementations and outermost not in registry:
        raise ConfigurationError(f"no store supports {outermost}://")
    return FsspecStore(url, options)


def open_for(url: str | os.PathLike[str], client: str, options: Mapping[str, Any]) -> Store:
    """Opens a store with options that may be meant for another one: a local folder or memory takes none."""
    return open_store(url) if takes_no_options(url) else open_store(url, client=client, **options)


def takes_no_options(url: str | os.PathLike[str]) -> bool:
    """Returns whether a URL is of a local folder or of memory."""
    text = os.fspath(url)
    return "://" not in text or text.partition("://")[0].lower() in ("file", "memory")
