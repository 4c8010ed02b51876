"""A local S3 server on the loopback, for demos, tests and benchmarks."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from botocore.credentials import Credentials

from concurrent_loader.storage.checked_url import endpoint_error
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.testing.servers.build_tools import Progress
from concurrent_loader.storage.testing.servers.processes import SupervisedProcess
from concurrent_loader.storage.testing.servers.programs import Kind, find_program
from concurrent_loader.storage.testing.servers.s3_requests import create_bucket, send
from concurrent_loader.storage.testing.servers.startup import start_server

__all__ = ["LocalS3", "Proxy", "local_s3", "new_credentials"]

_KINDS: tuple[Kind, ...] = ("external", "minio", "moto")
_REGION = "us-east-1"


class Proxy(Protocol):
    """A proxy in front of a server, such as `Toxiproxy` or `HttpFaults`."""

    @property
    def endpoint_url(self) -> str:
        """URL to which clients connect instead of the server."""


@dataclass(frozen=True, slots=True)
class LocalS3:
    """Address and credentials of a running S3 server.

    Attributes:
        endpoint_url: URL of the server, such as ``http://127.0.0.1:9000``.
        kind: ``"minio"``, ``"moto"``, or ``"external"`` for a server that the user named.
        access_key_id: Access key; random unless the server is external.
        secret_access_key: Secret key, which is not part of the repr; random unless the server is external.
        region: Region of all buckets.
        session_token: Session token of an external server, or None.
        origin: Source of the server, such as the path of a program or an image.

    Example:
        >>> from concurrent_loader.storage.testing import LocalS3
        >>> server = LocalS3("http://127.0.0.1:9000", "external", "key", "secret")
        >>> server.storage_options()["region"]
        'us-east-1'
    """

    endpoint_url: str
    kind: Kind
    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str = _REGION
    session_token: str | None = field(default=None, repr=False)
    origin: str = ""

    def storage_options(self) -> dict[str, str]:
        """Returns the storage options for this server, as for `concurrent_loader.storage.open_store`."""
        options = {
            "endpoint_url": self.endpoint_url,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "region": self.region,
        }
        return options if self.session_token is None else {**options, "session_token": self.session_token}

    def environment(self) -> dict[str, str]:
        """Returns the standard AWS environment variables for this server."""
        variables = {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }
        return variables if self.session_token is None else {**variables, "AWS_SESSION_TOKEN": self.session_token}

    def make_bucket(self, name: str) -> str:
        """Creates a bucket, unless it exists and is owned by these credentials; returns its URL.

        Raises:
            ConfigurationError: The bucket name is invalid.
            AccessDenied: The credentials do not allow it, or another user owns the bucket.
            ConnectionFailed: The server does not respond.
        """
        create_bucket(self.endpoint_url, name, self._credentials(), region=self.region)
        return f"s3://{name}"

    def through(self, proxy: Proxy) -> LocalS3:
        """Returns the same server, reached through a proxy in front of it."""
        return replace(self, endpoint_url=proxy.endpoint_url)

    def _credentials(self) -> Credentials:
        return Credentials(self.access_key_id, self.secret_access_key, self.session_token)


@contextmanager
def local_s3(
    *,
    endpoint_url: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    region: str | None = None,
    data_dir: str | Path | None = None,
    kinds: Sequence[Kind] = _KINDS,
    build: bool = True,
    progress: Progress | None = None,
) -> Iterator[LocalS3]:
    """Provides an S3 server during the ``with`` block: a given one, or a new one.

    The first available of these is used: ``endpoint_url``; ``AWS_ENDPOINT_URL`` with ``AWS_ACCESS_KEY_ID`` and
    ``AWS_SECRET_ACCESS_KEY``; MinIO from PATH, from the cache, built with Go (once, some minutes), or docker; or moto,
    with a warning in the log. A new server listens only on the loopback, has random credentials, and ends with this
    process, even after SIGKILL.

    Args:
        endpoint_url: URL of a running server. Its credentials come from the environment by default.
        access_key_id: Access key for ``endpoint_url``.
        secret_access_key: Secret key for ``endpoint_url``.
        session_token: Session token for ``endpoint_url``.
        region: Region for ``endpoint_url``; ``us-east-1`` by default.
        data_dir: Folder for the objects of a new server, created if missing and kept afterwards; a temporary folder by
            default.
        kinds: Accepted kinds of servers; ``("moto",)`` starts moto even if MinIO is available.
        build: Whether MinIO may be built, or its image pulled, if it is not installed.
        progress: Callback for lines of progress during a build; standard error by default.

    Yields:
        Running server.

    Raises:
        ConfigurationError: An endpoint has no credentials.
        ConnectionFailed: The endpoint does not respond.
        ToolUnavailable: No kind of server can be started here.
        ServerFailed: A new server did not respond.

    Example:
        >>> from concurrent_loader.storage import ShardWriter
        >>> from concurrent_loader.storage.testing import local_s3
        >>> with local_s3() as server:  # doctest: +SKIP
        ...     url = server.make_bucket("photos")
        ...     writer = ShardWriter(url, columns={"x": "int64"}, storage_options=server.storage_options())
    """
    named = (
        _named_server(endpoint_url, access_key_id, secret_access_key, session_token, region)
        if "external" in kinds
        else None
    )
    if named is not None:
        send("GET", named.endpoint_url)  # any response shows that the server is up
        yield named
        return
    credentials = new_credentials()
    folder = Path(tempfile.mkdtemp(prefix="concurrent-loader-s3-"))
    try:
        data = Path(data_dir).absolute() if data_dir is not None else folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        program = find_program(
            kinds,
            data_dir=data,
            home=folder,
            access_key_id=credentials.access_key,
            secret_access_key=credentials.secret_key,
            build=build,
            progress=progress,
        )
        process, url = start_server(program, partial(_supervised, folder), credentials, region=_REGION)
        try:
            yield LocalS3(url, program.kind, credentials.access_key, credentials.secret_key, origin=program.origin)
        finally:
            process.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_credentials() -> Credentials:
    """Returns random credentials for a new server."""
    return Credentials(secrets.token_hex(10), secrets.token_hex(20))


def _named_server(
    endpoint_url: str | None,
    access_key_id: str | None,
    secret_access_key: str | None,
    session_token: str | None,
    region: str | None,
) -> LocalS3 | None:
    """Returns the server given by arguments or by the standard variables, or None."""
    url = endpoint_url or os.environ.get("AWS_ENDPOINT_URL")
    if not url:
        return None
    if (refused := endpoint_error(url, name="endpoint_url or AWS_ENDPOINT_URL")) is not None:
        del url, endpoint_url
        raise refused
    given = access_key_id is not None or secret_access_key is not None
    key = access_key_id if given else os.environ.get("AWS_ACCESS_KEY_ID")
    secret = secret_access_key if given else os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not key or not secret:
        if endpoint_url is None:
            return None  # the variable is meant for something else
        raise ConfigurationError(
            "an endpoint needs access_key_id and secret_access_key, or AWS_ACCESS_KEY_ID and …", url=url
        )
    token = session_token if given else session_token or os.environ.get("AWS_SESSION_TOKEN")
    where = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _REGION
    return LocalS3(url.rstrip("/"), "external", key, secret, region=where, session_token=token, origin=url)


def _supervised(folder: Path, command: list[str], environment: dict[str, str]) -> SupervisedProcess:
    return SupervisedProcess(command, environment=environment, log=folder / "server.log", remove=folder)
