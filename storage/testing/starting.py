"""From a program to a server that answers: ports, readiness, and whose server it is that answers."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from botocore.credentials import Credentials

from storage.errors import ConfigurationError, ConnectionFailed
from storage.testing.failures import ServerFailed
from storage.testing.processes import ServerProcess
from storage.testing.programs import ServerProgram
from storage.testing.s3_requests import list_buckets, send

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
    """Starts a server on the loopback and waits until it answers to its credentials.

    A free port can be taken between being found and being bound; then the next one is tried, unless ``port`` names the
    one that it has to be.

    Args:
        program: What to start.
        spawn: Starts a process from a command line and an environment.
        credentials: The only ones that the server will know.
        region: For signatures.
        port: A certain port; any free one if None.
        deadline_s: For every attempt.

    Returns:
        The process and the endpoint's URL.

    Raises:
        ConfigurationError: Somebody listens on ``port`` already.
        ServerFailed: It ended or did not answer in time; the message has the end of its log.
    """
    if port is not None and _is_taken(port):
        raise ConfigurationError(
            "another server listens on this port: name another port, or none to get a free one", got=port
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
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: ports that are closing are free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on, at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(
    process: ServerProcess, program: ServerProgram, port: int, credentials: Credentials, region: str, deadline_s: float
) -> str:
    deadline = time.monotonic() + deadline_s
    # Who announces its port is asked there only: at a chosen one another server may answer, before this one has failed.
    endpoint_url = None if program.announces_port else f"http://127.0.0.1:{port}"
    while True:
        # The pause between two questions, cut short by the server's end.
        if process.wait(_POLL_S):
            raise ServerFailed(
                f"the {program.kind} server ended: {process.log_text() or 'it wrote nothing'}", got=program.origin
            )
        if endpoint_url is None:
            announced = _ANNOUNCED.search(process.log_text())
            endpoint_url = announced[1] if announced else None
        elif _answers(endpoint_url, program, credentials, region):
            return endpoint_url
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"the {program.kind} server did not answer in {deadline_s:.0f} s: {process.log_text()}",
                url=endpoint_url,
                got=program.origin,
            )


def _answers(endpoint_url: str, program: ServerProgram, credentials: Credentials, region: str) -> bool:
    """Whether the server is up and is ours: another's MinIO on the same port would not know the random credentials."""
    try:
        if (
            program.kind == "minio"
            and send("GET", f"{endpoint_url}/minio/health/ready", timeout_s=_REQUEST_TIMEOUT_S).status != 200
        ):
            return False
        return list_buckets(endpoint_url, credentials, region=region, timeout_s=_REQUEST_TIMEOUT_S).status == 200
    except ConnectionFailed:
        return False
