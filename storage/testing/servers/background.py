"""A local S3 server in the background, which later commands find and stop through a state file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from botocore.credentials import Credentials

from concurrent_loader.storage.errors import ConfigurationError, ConnectionFailed
from concurrent_loader.storage.testing.servers.build_tools import Progress
from concurrent_loader.storage.testing.servers.local_s3 import LocalS3, new_credentials
from concurrent_loader.storage.testing.servers.processes import DetachedProcess
from concurrent_loader.storage.testing.servers.programs import Kind, find_program
from concurrent_loader.storage.testing.servers.s3_requests import list_buckets
from concurrent_loader.storage.testing.servers.startup import start_server
from concurrent_loader.storage.testing.servers.user_dirs import state_folder

__all__ = ["DetachedS3", "running_s3", "start_s3", "stop_s3"]

_REGION = "us-east-1"
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class DetachedS3:
    """A server in the background.

    Attributes:
        server: Address and credentials of the server.
        pid: Process id of the server's supervisor.
        data_dir: Folder of the objects.
        log: Path of the server's log.
        started_in: Working directory of the call that started the server; "" if unknown.

    Example:
        >>> from concurrent_loader.storage.testing import running_s3
        >>> running = running_s3()  # doctest: +SKIP
        >>> running.server.endpoint_url  # doctest: +SKIP
        'http://127.0.0.1:9000'
    """

    server: LocalS3
    pid: int
    data_dir: Path
    log: Path
    started_in: str = ""


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state file, which holds credentials and is readable only by its owner."""

    pid: int
    birth: str
    endpoint_url: str
    kind: Kind
    access_key_id: str
    secret_access_key: str
    data_dir: str
    origin: str
    started_in: str = ""


def start_s3(
    *,
    port: int | None = None,
    data_dir: str | Path | None = None,
    kinds: tuple[Kind, ...] = ("minio", "moto"),
    build: bool = True,
    progress: Progress | None = None,
) -> tuple[DetachedS3, bool]:
    """Starts a server in the background, unless one is running.

    Args:
        port: Loopback port; any free port by default.
        data_dir: Folder of the objects, which outlives the server; a folder beside the state file by default.
        kinds: Accepted kinds of servers.
        build: Whether MinIO may be built, or its image pulled.
        progress: Callback for lines of progress; standard error by default.

    Returns:
        Server, and whether this call started it.

    Raises:
        ConfigurationError: A server runs with another port or folder, or another program uses its address or port.
        ToolUnavailable: No kind of server can be started here.
        ServerFailed: The server did not respond.

    Example:
        >>> from concurrent_loader.storage.testing import start_s3, stop_s3
        >>> running, is_new = start_s3()  # doctest: +SKIP
        >>> stopped = stop_s3()  # doctest: +SKIP
    """
    with _locked() as folder:
        running = _find(folder)
        if running is not None:
            _check_same(running, port, data_dir)
            _check_answers(running)
            return running, False
        data = Path(data_dir).absolute() if data_dir is not None else folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        return _start(folder, data, port, kinds, build, progress), True


def running_s3() -> DetachedS3 | None:
    """Returns the server that `start_s3` started, if it is still running.

    Example:
        >>> from concurrent_loader.storage.testing import running_s3
        >>> running = running_s3()  # doctest: +SKIP
        >>> running.server.endpoint_url  # doctest: +SKIP
        'http://127.0.0.1:9000'
    """
    with _locked() as folder:
        return _find(folder)


def stop_s3() -> DetachedS3 | None:
    """Stops the background server, keeps its objects, and returns the stopped server; None if none was running.

    Example:
        >>> from concurrent_loader.storage.testing import stop_s3
        >>> stopped = stop_s3()  # doctest: +SKIP
        >>> stopped.data_dir  # doctest: +SKIP
        PosixPath('/home/me/.local/state/concurrent-loader/s3/data')
    """
    with _locked() as folder:
        running = _find(folder)
        state = _read(folder)
        if running is not None and state is not None:
            DetachedProcess(state.pid, state.birth, running.log).stop()
        (folder / "state.json").unlink(missing_ok=True)
        return running


def _start(
    folder: Path, data: Path, port: int | None, kinds: tuple[Kind, ...], build: bool, progress: Progress | None
) -> DetachedS3:
    credentials = new_credentials()
    log = folder / "server.log"
    program = find_program(
        kinds,
        data_dir=data,
        home=folder,
        access_key_id=credentials.access_key,
        secret_access_key=credentials.secret_key,
        build=build,
        progress=progress,
    )
    with ExitStack() as on_failure:
        process, url = start_server(program, partial(_detached, log), credentials, region=_REGION, port=port)
        on_failure.callback(process.stop)
        state = _State(
            pid=process.pid,
            birth=process.birth,
            endpoint_url=url,
            kind=program.kind,
            access_key_id=credentials.access_key,
            secret_access_key=credentials.secret_key,
            data_dir=str(data),
            origin=program.origin,
            started_in=str(Path.cwd()),
        )
        _write(folder, state)
        on_failure.pop_all()
    return _describe(folder, state)


def _detached(log: Path, command: list[str], environment: dict[str, str]) -> DetachedProcess:
    return DetachedProcess.start(command, environment=environment, log=log)


def _check_answers(running: DetachedS3) -> None:
    """Checks that the right server responds at the address, because another may have taken its port."""
    server = running.server
    credentials = Credentials(server.access_key_id, server.secret_access_key)
    try:
        status = list_buckets(server.endpoint_url, credentials, region=_REGION, timeout_s=_ANSWER_S).status
    except ConnectionFailed:
        status = 0
    if status != 200:
        raise ConfigurationError(
            "the background server does not accept its keys, and another server may have taken its port; "
            "run `concurrent-loader s3 stop`, then start again",
            url=server.endpoint_url,
            got=status or "no answer",
        )


def _check_same(running: DetachedS3, port: int | None, data_dir: str | Path | None) -> None:
    if port is not None and not running.server.endpoint_url.endswith(f":{port}"):
        raise ConfigurationError(
            "a server is already running on another port", expected=port, got=running.server.endpoint_url
        )
    if data_dir is not None and Path(data_dir).absolute() != running.data_dir:
        raise ConfigurationError(
            "a server is already running with another folder", expected=str(data_dir), got=str(running.data_dir)
        )


@contextmanager
def _locked() -> Iterator[Path]:
    """Locks the state folder during the block, so that two concurrent starts start one server."""
    folder = state_folder() / "s3"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(descriptor)


def _find(folder: Path) -> DetachedS3 | None:
    state = _read(folder)
    if state is None or not DetachedProcess(state.pid, state.birth, folder / "server.log").is_alive():
        return None
    return _describe(folder, state)


def _describe(folder: Path, state: _State) -> DetachedS3:
    server = LocalS3(state.endpoint_url, state.kind, state.access_key_id, state.secret_access_key, origin=state.origin)
    return DetachedS3(server, state.pid, Path(state.data_dir), folder / "server.log", state.started_in)


def _read(folder: Path) -> _State | None:
    try:
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=_State)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            "the state file is of another version; stop the server by hand and delete the file",
            got=str(folder / "state.json"),
        ) from error


def _write(folder: Path, state: _State) -> None:
    """Writes the state file atomically, and never readable by others."""
    temporary = folder / "state.json.new"
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(state))
    temporary.replace(folder / "state.json")
