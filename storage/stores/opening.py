"""From a URL to a store: which backend a URL means, and which client speaks to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from storage.checked_url import remote_meant
from storage.errors import ConfigurationError
from storage.hidden_arguments import hides_secrets
from storage.secrets import redact_url
from storage.stores.local import LocalStore
from storage.stores.memory import MemoryStore
from storage.stores.protocol import Store

if TYPE_CHECKING:
    from storage.stores.options import S3Options

__all__ = ["open_store"]

_CLIENTS = ("auto", "aiobotocore", "obstore", "fsspec")
_S3 = ("s3", "s3a")


@hides_secrets
def open_store(url: str | os.PathLike[str], *, client: str = "auto", **storage_options: Any) -> Store:
    """Opens a store; nothing is sent before its first use.

    Args:
        url: ``memory://name``, a path or ``file:///path``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``, or any other
            URL that fsspec knows. Read literally, without percent decoding.
        client: ``"obstore"``, ``"aiobotocore"`` (S3 only) or ``"fsspec"``; ``"auto"`` takes obstore where it speaks the
            scheme, because it is the fastest (docs/stores.md has the figures), and fsspec elsewhere. In a process that
            was forked from one that had used obstore, or behind a proxy that the environment names (``HTTPS_PROXY``),
            ``"auto"`` takes aiobotocore for S3.
        **storage_options: See `S3Options`, `GoogleOptions` and `AzureOptions`; memory and local stores have none; with
            fsspec also whatever the file system takes.

    Returns:
        A store of its own: connections are not shared between stores.

    Raises:
        ConfigurationError: An unknown client or option, a client that does not speak the scheme, a malformed URL, one
            that holds credentials, or one whose ``s3://`` was forgotten.
    """
    if isinstance(url, str) and (meant := remote_meant(url)) is not None:
        raise ConfigurationError(
            f"no scheme in the URL: did you mean {redact_url(meant)!r}? (for a new local folder, write './' before it)",
            got=url,
        )
    url = os.fspath(url)
    if client not in _CLIENTS:
        raise ConfigurationError(f"client is one of {', '.join(_CLIENTS)}", got=client)
    scheme = url.partition("://")[0].lower() if "://" in url else "file"
    if client == "fsspec" or "::" in scheme:
        return _open_filesystem(url, client, storage_options)
    if scheme in ("file", "memory"):
        return _open_here(url, scheme, client, storage_options)
    return _open_cloud(url, scheme, client, storage_options)


def _open_here(url: str, scheme: str, client: str, options: dict[str, Any]) -> Store:
    if client != "auto":
        raise ConfigurationError(f"{client} does not speak {scheme}://", url=url)
    if options:
        raise ConfigurationError(f"a {scheme} store has no options, got {', '.join(sorted(options))}", url=url)
    return MemoryStore(url) if scheme == "memory" else LocalStore(url)


def _open_cloud(url: str, scheme: str, client: str, options: dict[str, Any]) -> Store:
    # Imported where they are needed: together they take most of a second.
    from storage.stores.cloud import CloudStore, options_for, survives_fork
    from storage.stores.options import S3Options, parse_options

    kind = options_for(scheme)
    if scheme in _S3:
        known = parse_options(S3Options, options, url=url)
        if client == "aiobotocore" or (client == "auto" and (not survives_fork() or _has_proxy(known, url))):
            from storage.stores.s3 import S3Store

            return S3Store(url, known)
    elif client == "aiobotocore":
        raise ConfigurationError(f"aiobotocore does not speak {scheme}://", url=url)
    if kind is not None:
        return CloudStore(url, parse_options(kind, options, url=url))
    return _open_filesystem(url, client, options)


def _has_proxy(options: S3Options, url: str) -> bool:
    """Whether requests go through a proxy of the environment, where obstore follows redirects."""
    from storage.stores.aws_settings import AwsSettings
    from storage.stores.redirect_guard import environment_proxy

    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return False
    settings = AwsSettings.resolve(options, url=url)
    return environment_proxy(settings.endpoint_url or f"https://s3.{settings.region}.amazonaws.com") is not None


def _open_filesystem(url: str, client: str, options: dict[str, Any]) -> Store:
    from fsspec.registry import known_implementations, registry

    from storage.stores.filesystem import FilesystemStore

    if client not in ("auto", "fsspec"):
        raise ConfigurationError(f"{client} does not speak this URL", url=url)
    outermost = url.partition("://")[0].partition("::")[0].lower() if "://" in url else "file"
    if outermost not in known_implementations and outermost not in registry:
        raise ConfigurationError(f"no store speaks {outermost}://")
    return FilesystemStore(url, options)
