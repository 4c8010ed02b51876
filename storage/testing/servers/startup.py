"""Starts a server: chooses a port, waits for readiness, and checks that the right server responds."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from botocore.credentials import Credentials

from concurrent_loader.storage.errors import ConfigurationError, ConnectionFailed
from concurrent_loader.storage.testing.servers.errors import ServerFailed
from concurrent_loader.storage.testing.servers.processes import ServerProcess
from concurrent_loader.storage.testing.servers.programs import ServerProgram
from concurrent_loader.storage.testing.servers.s3_requests import list_buckets, send

__all__ = ["Spawn", "free_port", "start_server"]

P = TypeVar("P", bound=ServerProcess)
Spawn = Callable[[list[str], dict[str, str]], P]

_DEADLINE_S = 30.0
_POLL_S = 0.02
_REQUEST_TIMEOUT_S = 2.0
_PORT_ATTEMPTS = 5
_IN_USE = re.compile(r"in use|already allocated", re.IGNORECASE)
_ANNOUNCED = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


def start_server(
    program: ServerProgram,
    spawn: Spawn[P],
    credentials: Credentials,
    *,
    region: str,
    port: int | None = None,
    deadline_s: float = _DEADLINE_S,
) -> tuple[P, str]:
    """Starts a server on the loopback and waits until it accepts its credentials.

    Another program may take a free port before the server binds it; then another port is tried, unless ``port`` is
    given.

    Args:
        program: Server program to start.
        spawn: Function that starts a process, given a command line and an environment.
        credentials: Credentials of the new server.
        region: Region for signatures.
        port: Port to use; any free port by default.
        deadline_s: Longest time per attempt, in seconds.

    Returns:
        Process, and URL of the endpoint.

    Raises:
        ConfigurationError: Another program listens on ``port``.
        ServerFailed: The server ended or did not respond in time; the message has the end of its log.
    """
    if port is not None and _is_taken(port):
        raise ConfigurationError(
            "another program listens on this port: choose another port, or none to get a free one", got=port
        )
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        chosen = port or (0 if program.announces_port else free_port())
        process = spawn(program.command(chosen), program.environment)
        try:
            return process, _wait_ready(process, program, chosen, credentials, region, deadline_s)
        except ServerFailed:
            process.stop()
            if port is not None or attempt == _PORT_ATTEMPTS or not _IN_USE.search(process.log_text()):
                raise
        except BaseException:
            process.stop()
            raise
    raise AssertionError("the loop returns or raises")


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # Servers set this option, too: a port whose last connections are closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def free_port() -> int:
    """Returns a loopback TCP port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(
    process: ServerProcess, program: ServerProgram, port: int, credentials: Credentials, region: str, deadline_s: float
) -> str:
    deadline = time.monotonic() + deadline_s
    # A server that announces its port is asked only there: at a chosen port, another server might respond first.
    endpoint_url = None if program.announces_port else f"http://127.0.0.1:{port}"
    while True:
        # Pause between two requests, or return early if the server ends.
        if process.wait(_POLL_S):
            raise ServerFailed(
                f"the {program.kind} server ended: {process.log_text() or 'no output'}", got=program.origin
            )
        if endpoint_url is None:
            announced = _ANNOUNCED.search(process.log_text())
            endpoint_url = announced[1] if announced else None
        elif _answers(endpoint_url, program, credentials, region):
            return endpoint_url
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"the {program.kind} server did not respond within {deadline_s:.0f} s: {process.log_text()}",
                url=endpoint_url,
                got=program.origin,
            )


def _answers(endpoint_url: str, program: ServerProgram, credentials: Credentials, region: str) -> bool:
    """Returns whether the server is up and accepts the random credentials, which no other server knows."""
    try:
        if (
            program.kind == "minio"
            and send("GET", f"{endpoint_url}/minio/health/ready", timeout_s=_REQUEST_TIMEOUT_S).status != 200
        ):
            return False
        return list_buckets(endpoint_url, credentials, region=region, timeout_s=_REQUEST_TIMEOUT_S).status == 200
    except ConnectionFailed:
        return False
