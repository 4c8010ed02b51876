"""The sockets of running loaders: their folder, which belongs to the user alone, their names, and asking them.

A socket's name is ``PID-RANDOM.sock``. Whether its process lives is decided by connecting, not by the PID, because
containers that share a folder have PIDs of their own. Imports neither torch nor a client of a store.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["VERSION", "ask", "ask_all", "listen", "runtime_folder", "runtime_folders", "sweep"]

VERSION = 1  # of answers; others are left out
_NAME = "concurrent-loader"
_SUFFIX = ".sock"
_MAX_PATH_BYTES = 103  # 108 with the final zero on Linux, 104 elsewhere
_ANSWER_S = 3.0
_MAX_ANSWER_BYTES = 16 << 20
_NEW_S = 60.0  # a file that is being made is left alone for this long


def runtime_folders() -> list[Path]:
    """Returns the folders in which sockets may be: in the user's runtime folder, and in the temporary one."""
    found = [Path(tempfile.gettempdir()) / f"{_NAME}-{os.geteuid()}"]
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute():
        found.insert(0, runtime / _NAME)
    return found


def runtime_folder() -> Path:
    """Creates and returns the folder for sockets, which only this user can enter.

    Raises:
        OSError: None of the folders can be created, or the folder belongs to somebody else.
    """
    *others, last = runtime_folders()
    for folder in others:
        with suppress(OSError):
            return _own_folder(folder)
    return _own_folder(last)


def _own_folder(folder: Path) -> Path:
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def listen(folder: Path) -> tuple[socket.socket, Path]:
    """Creates this process's socket, with mode 0600, and listens on it.

    Raises:
        OSError: The socket cannot be created.
    """
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
    new = path.with_suffix(".new")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(new) as address:
            listening.bind(address)
        new.chmod(0o600)
        listening.listen()
        new.rename(path)  # visible only now, when it accepts connections
    except BaseException:
        listening.close()
        new.unlink(missing_ok=True)
        raise
    return listening, path


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yields a short address of a socket, because the kernel limits addresses to 108 bytes."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield os.fspath(path)
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_S)
        with _address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def sweep(folder: Path) -> None:
    """Deletes the sockets of processes that no longer exist."""
    for path in folder.glob("*"):
        with suppress(OSError):
            status = path.lstat()
            is_new = path.suffix != _SUFFIX and time.time() - status.st_mtime < _NEW_S
            if not stat.S_ISSOCK(status.st_mode) or is_new:
                continue
            try:
                _connect(path).close()
            except ConnectionRefusedError:
                path.unlink()


def ask(path: Path) -> dict[str, Any] | None:
    """Asks the process behind a socket about its loaders; returns None if it has ended or does not answer."""
    parts, left = [], _MAX_ANSWER_BYTES
    try:
        with _connect(path) as connection:
            while left > 0 and (part := connection.recv(1 << 16)):
                parts.append(part)
                left -= len(part)
        found = json.loads(b"".join(parts))
    except (OSError, ValueError):
        return None
    is_known = isinstance(found, dict) and found.get("version") == VERSION and isinstance(found.get("loaders"), list)
    return found if is_known else None


def ask_all(target: str | None = None) -> list[dict[str, Any]]:
    """Asks running processes about their loaders.

    Args:
        target: Process id, or a folder with sockets; None for all processes of this user.

    Returns:
        Answers, ordered by rank and process id.
    """
    folders, pattern = runtime_folders(), f"*{_SUFFIX}"
    if target is not None and target.isdecimal():
        pattern = f"{target}-*{_SUFFIX}"
    elif target is not None:
        folders = [Path(target)]
    paths = [path for folder in folders if folder.is_dir() for path in folder.glob(pattern)]
    answers = [found for path in paths if (found := ask(path)) is not None]
    return sorted(answers, key=lambda found: ([each["rank"] for each in found["loaders"]][:1], found["pid"]))
