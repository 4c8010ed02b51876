"""A local S3 server that outlives the command that started it: started, found again, stopped through a state file."""

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

from storage.errors import ConfigurationError, ConnectionFailed
from storage.testing.binaries import Progress
from storage.testing.local_s3 import LocalS3, new_credentials
from storage.testing.processes import DetachedProcess
from storage.testing.programs import Kind, find_program
from storage.testing.s3_requests import list_buckets
from storage.testing.starting import start_server
from storage.testing.user_folders import state_folder

__all__ = ["DetachedS3", "running_s3", "start_s3", "stop_s3"]

_REGION = "us-east-1"
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class DetachedS3:
    """A server in the background.

    Attributes:
        server: The way in.
        pid: Of the process that guards it.
        data_dir: Where its objects are.
        log: What it writes.
        started_in: The working directory of the call that started it; "" if unknown.
    """

    server: LocalS3
    pid: int
    data_dir: Path
    log: Path
    started_in: str = ""


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state file; it holds credentials, so only its owner may read it."""

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
    """Starts a server in the background, unless there is one already.

    Args:
        port: Of the loopback; any free one if None.
        data_dir: Where its objects go; a folder beside the state file if None. Both outlive the server.
        kinds: Which are welcome.
        build: Whether MinIO may be built, or its image pulled.
        progress: Gets a line now and then while that lasts; standard error if None.

    Returns:
        The server, and whether it has been started by this call.

    Raises:
        ConfigurationError: One runs already, on another port or with another folder than asked for; or something else
            answers at its address, or listens on the port asked for.
        ToolUnavailable, ServerFailed: As for `storage.testing.local_s3`.
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
    """The server that `start_s3` left in the background, if it still runs."""
    with _locked() as folder:
        return _find(folder)


def stop_s3() -> DetachedS3 | None:
    """Ends the server and returns once it is gone; its objects stay. Returns what it was, or None if there was none."""
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
    """Makes sure that the server that was started is the one that answers there: another may have taken its port."""
    server = running.server
    credentials = Credentials(server.access_key_id, server.secret_access_key)
    try:
        status = list_buckets(server.endpoint_url, credentials, region=_REGION, timeout_s=_ANSWER_S).status
    except ConnectionFailed:
        status = 0
    if status != 200:
        raise ConfigurationError(
            "the server in the background does not answer to its keys, and another server may have taken its port; "
            "run `concurrent-loader s3 stop`, then start again",
            url=server.endpoint_url,
            got=status or "no answer",
        )


def _check_same(running: DetachedS3, port: int | None, data_dir: str | Path | None) -> None:
    if port is not None and not running.server.endpoint_url.endswith(f":{port}"):
        raise ConfigurationError(
            "a server runs already, on another port", expected=port, got=running.server.endpoint_url
        )
    if data_dir is not None and Path(data_dir).absolute() != running.data_dir:
        raise ConfigurationError(
            "a server runs already, with another folder", expected=str(data_dir), got=str(running.data_dir)
        )


@contextmanager
def _locked() -> Iterator[Path]:
    """The state's folder, nobody else's while the block lasts: two starts at once start one server."""
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
            "the state file is not one of this version; end the server by hand and delete the file",
            got=str(folder / "state.json"),
        ) from error


def _write(folder: Path, state: _State) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    temporary = folder / "state.json.new"
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(state))
    temporary.replace(folder / "state.json")
