"""A bucket without a cloud: an S3 server on the loopback for a demo, a test, a benchmark."""

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
from typing import TYPE_CHECKING

from botocore.credentials import Credentials

from storage.checked_url import endpoint_error
from storage.errors import ConfigurationError
from storage.testing.binaries import Progress
from storage.testing.processes import SupervisedProcess
from storage.testing.programs import Kind, find_program
from storage.testing.s3_requests import create_bucket, send
from storage.testing.starting import start_server

if TYPE_CHECKING:
    from storage.testing.http_faults import HttpFaults
    from storage.testing.http_faults_process import HttpFaultsProcess
    from storage.testing.toxiproxy import Toxiproxy

__all__ = ["LocalS3", "local_s3", "new_credentials"]

_KINDS: tuple[Kind, ...] = ("external", "minio", "moto")
_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class LocalS3:
    """A running S3 server and the way in.

    Attributes:
        endpoint_url: ``http://127.0.0.1:port``, or what the user named.
        kind: ``"minio"``, ``"moto"``, or ``"external"`` for a server that the user named.
        access_key_id: Random, for this server alone, unless it is external.
        secret_access_key: The same; never part of the repr.
        region: Of all its buckets.
        session_token: Of external servers only.
        origin: Where the server comes from: a program's path, an image.
    """

    endpoint_url: str
    kind: Kind
    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str = _REGION
    session_token: str | None = field(default=None, repr=False)
    origin: str = ""

    def storage_options(self) -> dict[str, str]:
        """What `storage.open_store` and everything above it takes to talk to this server."""
        options = {
            "endpoint_url": self.endpoint_url,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "region": self.region,
        }
        return options if self.session_token is None else {**options, "session_token": self.session_token}

    def environment(self) -> dict[str, str]:
        """The same as the standard variables, for the command line and for other people's clients."""
        variables = {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }
        return variables if self.session_token is None else {**variables, "AWS_SESSION_TOKEN": self.session_token}

    def make_bucket(self, name: str) -> str:
        """Creates a bucket, unless it is there and ours already; returns its URL.

        Raises:
            ConfigurationError: The name is none for a bucket.
            AccessDenied: The credentials do not allow it, or the bucket is somebody else's.
            ConnectionFailed: The server does not answer.
        """
        create_bucket(self.endpoint_url, name, self._credentials(), region=self.region)
        return f"s3://{name}"

    def through(self, proxy: Toxiproxy | HttpFaults | HttpFaultsProcess) -> LocalS3:
        """The same server, reached through a proxy that stands in front of it."""
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
    """Hands out an S3 server: the one that the user names, or one that lives as long as the ``with`` block.

    The first that there is: ``endpoint_url``; ``AWS_ENDPOINT_URL`` with ``AWS_ACCESS_KEY_ID`` and
    ``AWS_SECRET_ACCESS_KEY``; MinIO from PATH, from the cache, built with Go (once, some minutes), from docker; moto,
    with a warning in the log. A server that is started listens on the loopback only, knows random credentials only, and
    ends with this process, even by SIGKILL.

    Args:
        endpoint_url: A running server, used as it is. Credentials, if not given, are those of the environment.
        access_key_id: For ``endpoint_url``.
        secret_access_key: For ``endpoint_url``.
        session_token: For ``endpoint_url``.
        region: For ``endpoint_url``; ``us-east-1`` by default.
        data_dir: Where a started server keeps its objects: created if need be, kept afterwards. A temporary folder,
            removed at the end, if None.
        kinds: Which are welcome; ``("moto",)`` starts moto though there may be a MinIO.
        build: Whether MinIO may be built, or its image pulled, if it is not here.
        progress: Gets a line now and then while that lasts; standard error if None.

    Raises:
        ConfigurationError: An endpoint without credentials.
        ConnectionFailed: The named endpoint does not answer.
        ToolUnavailable: None of the kinds can be started here.
        ServerFailed: A server was started and did not answer.
    """
    named = (
        _named_server(endpoint_url, access_key_id, secret_access_key, session_token, region)
        if "external" in kinds
        else None
    )
    if named is not None:
        send("GET", named.endpoint_url)  # any answer will do: it is up
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
    """Random ones, for one server."""
    return Credentials(secrets.token_hex(10), secrets.token_hex(20))


def _named_server(
    endpoint_url: str | None,
    access_key_id: str | None,
    secret_access_key: str | None,
    session_token: str | None,
    region: str | None,
) -> LocalS3 | None:
    """The server that the user means, by argument or by the standard variables; None if there is none."""
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
            return None  # a variable that is there for something else
        raise ConfigurationError(
            "an endpoint needs access_key_id and secret_access_key, or AWS_ACCESS_KEY_ID and …", url=url
        )
    token = session_token if given else session_token or os.environ.get("AWS_SESSION_TOKEN")
    where = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _REGION
    return LocalS3(url.rstrip("/"), "external", key, secret, region=where, session_token=token, origin=url)


def _supervised(folder: Path, command: list[str], environment: dict[str, str]) -> SupervisedProcess:
    return SupervisedProcess(command, environment=environment, log=folder / "server.log", remove=folder)
