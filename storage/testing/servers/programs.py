"""Finds an S3 server program that can be started here, and knows how to start it."""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from concurrent_loader.storage.testing.servers.build_tools import MINIO, Progress, find_tool, show_progress
from concurrent_loader.storage.testing.servers.errors import ToolUnavailable

__all__ = ["Kind", "ServerProgram", "find_program"]

Kind = Literal["minio", "moto", "external"]

# The last published image; the source that `build_tools.MINIO` pins is four months newer.
_IMAGE = "minio/minio:RELEASE.2025-09-07T16-13-09Z"
_PULL_DEADLINE_S = 600
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A server program that can be started here.

    Attributes:
        kind: Kind of the server.
        origin: Source of the program, for messages.
        command: Function that returns the command line for a port; port 0 only if ``announces_port``.
        environment: Complete environment.
        announces_port: Whether the server chooses a free port and writes its URL to its log.
    """

    kind: Kind
    origin: str
    command: Callable[[int], list[str]]
    environment: dict[str, str]
    announces_port: bool = False


def find_program(
    kinds: Sequence[Kind],
    *,
    data_dir: Path,
    home: Path,
    access_key_id: str,
    secret_access_key: str,
    build: bool,
    progress: Progress | None,
) -> ServerProgram:
    """Returns the best available server: MinIO from PATH, the cache, Go or docker, otherwise moto.

    Args:
        kinds: Accepted kinds of servers.
        data_dir: Folder of the objects.
        home: Folder for other files of the server.
        access_key_id: Access key of the server's only user.
        secret_access_key: Secret key of that user.
        build: Whether MinIO may be built, or its image pulled.
        progress: Callback for lines of progress.

    Raises:
        ToolUnavailable: No kind of server can be started here.
    """
    reasons = []
    environment = _environment(home)
    if "minio" in kinds:
        user = {"MINIO_ROOT_USER": access_key_id, "MINIO_ROOT_PASSWORD": secret_access_key}
        try:
            return _minio(find_tool(MINIO, build=build, progress=progress), data_dir, home, {**environment, **user})
        except ToolUnavailable as error:
            reasons.append(str(error))
        if _docker_answers() and (_has_image() or (build and _pull_image(progress or show_progress))):
            return _docker(data_dir, {**environment, **user})
        reasons.append("no docker daemon has the image")
    if "moto" in kinds:
        if importlib.util.find_spec("moto") is not None:
            if reasons:
                _LOG.warning(
                    "MinIO is not available; using moto, which is too slow for measurements: %s",
                    "; ".join(reasons),
                )
            return _moto({**environment, "MOTO_PORT": "0"})
        reasons.append("moto is not installed (pip install '.[testing]' in the clone)")
    raise ToolUnavailable(f"no local S3 server of kind {' or '.join(kinds)} can be started: {'; '.join(reasons)}")


def _environment(home: Path) -> dict[str, str]:
    """Returns a minimal environment, so that no setting for another program reaches the server."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home)}


def _minio(program: Path, data_dir: Path, home: Path, environment: dict[str, str]) -> ServerProgram:
    def command(port: int) -> list[str]:
        address = f"127.0.0.1:{port}"
        return [
            str(program),
            "server",
            str(data_dir),
            "--address",
            address,
            "--certs-dir",
            str(home / "certs"),
            "--quiet",
        ]

    return ServerProgram("minio", str(program), command, {**environment, **_MINIO_SETTINGS})


_MINIO_SETTINGS = {
    "MINIO_UPDATE": "off",
    "MINIO_BROWSER": "off",
    "MINIO_CI_CD": "1",  # accept a folder on the system's own drive
    "MINIO_SCANNER_SPEED": "slowest",  # housekeeping would compete with measurements
}


def _docker(data_dir: Path, environment: dict[str, str]) -> ServerProgram:
    settings = [name for name in environment if name.startswith("MINIO_")] + list(_MINIO_SETTINGS)

    def command(port: int) -> list[str]:
        # fmt: off
        return [
            "docker", "run", "--rm", "--init",
            "--name", f"concurrent-loader-{secrets.token_hex(4)}",
            "--publish", f"127.0.0.1:{port}:9000",
            "--user", f"{os.getuid()}:{os.getgid()}",
            "--volume", f"{data_dir}:/data",
            *(part for name in settings for part in ("--env", name)),  # keeps the values out of the process list
            _IMAGE, "server", "/data", "--address", ":9000", "--quiet",
        ]
        # fmt: on

    docker = {name: value for name, value in os.environ.items() if name.startswith("DOCKER_") or name == "HOME"}
    return ServerProgram("minio", _IMAGE, command, {**environment, **_MINIO_SETTINGS, **docker})


def _docker_answers() -> bool:
    return shutil.which("docker") is not None and _run_docker(
        "version", "--format", "{{.Server.Version}}", timeout_s=10
    )


def _has_image() -> bool:
    return _run_docker("image", "inspect", _IMAGE, timeout_s=10)


def _pull_image(progress: Progress) -> bool:
    progress(f"pulling {_IMAGE}, once")
    return _run_docker("pull", "--quiet", _IMAGE, timeout_s=_PULL_DEADLINE_S)


def _run_docker(*arguments: str, timeout_s: float) -> bool:
    try:
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, check=False, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _moto(environment: dict[str, str]) -> ServerProgram:
    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]

    return ServerProgram("moto", "moto", command, environment, announces_port=True)
