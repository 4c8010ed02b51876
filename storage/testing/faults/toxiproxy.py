"""A TCP proxy that adds the latency and bandwidth of a real store, and failures on demand."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from concurrent_loader.storage.errors import ConfigurationError, ConnectionFailed
from concurrent_loader.storage.testing.servers.build_tools import TOXIPROXY, Progress, find_tool
from concurrent_loader.storage.testing.servers.errors import ServerFailed
from concurrent_loader.storage.testing.servers.local_s3 import LocalS3
from concurrent_loader.storage.testing.servers.processes import SupervisedProcess
from concurrent_loader.storage.testing.servers.s3_requests import send
from concurrent_loader.storage.testing.servers.startup import free_port

__all__ = ["Toxiproxy", "toxiproxy"]

_DEADLINE_S = 15.0
_POLL_S = 0.02
_PORT_ATTEMPTS = 5


class Toxiproxy:
    """A proxy in front of one server, whose effects can be changed at any time.

    Changes apply to open connections as well as to new ones. A stalled connection may block a change forever, and all
    later ones: cut the connections first (`disable`), or `restart`.

    Args:
        program: Path of the toxiproxy program.
        upstream_url: URL of the server.
        toxics: Initial toxics, as (name, attributes), downstream.

    Attributes:
        endpoint_url: URL to which clients connect instead of the server.
        upstream_url: URL of the server.

    Example:
        >>> from concurrent_loader.storage.testing import toxiproxy
        >>> with toxiproxy("http://127.0.0.1:9000") as proxy:  # doctest: +SKIP
        ...     proxy.toxics()
        ['bandwidth', 'latency']
    """

    def __init__(self, program: Path, upstream_url: str, toxics: Sequence[tuple[str, dict[str, int]]]) -> None:
        self._program = program
        self._toxics = toxics
        self._name = secrets.token_hex(8)
        self.upstream_url = upstream_url
        self.endpoint_url = ""
        self._begin("127.0.0.1:0")

    def __repr__(self) -> str:
        return f"Toxiproxy({self.endpoint_url!r} -> {self.upstream_url!r})"

    def add_toxic(
        self,
        name: str,
        kind: str,
        *,
        stream: Literal["upstream", "downstream"] = "downstream",
        toxicity: float = 1.0,
        **attributes: int,
    ) -> None:
        """Adds a toxic.

        Args:
            name: Name of the toxic, for `remove_toxic`.
            kind: ``latency`` (latency, jitter: ms), ``bandwidth`` (rate: KB/s), ``slow_close`` (delay: ms), ``timeout``
                (timeout: ms, 0 means forever), ``reset_peer`` (timeout: ms), ``slicer`` (average_size, size_variation:
                bytes; delay: µs) or ``limit_data`` (bytes).
            stream: Direction; ``downstream`` (default) is from the server to the client.
            toxicity: Share of affected connections, 0 to 1; 1 by default.
            **attributes: Attributes of the kind.

        Raises:
            ConfigurationError: The kind is unknown, or the name is taken.
        """
        self._ask(
            "POST",
            "/toxics",
            {"name": name, "type": kind, "stream": stream, "toxicity": toxicity, "attributes": attributes},
        )

    def remove_toxic(self, name: str) -> None:
        """Removes a toxic.

        Raises:
            ConfigurationError: The name is unknown.
        """
        self._ask("DELETE", f"/toxics/{quote(name, safe='')}")

    def toxics(self) -> list[str]:
        """Returns the names of the active toxics, in the order in which they apply."""
        return [toxic["name"] for toxic in self._ask("GET", "/toxics")]

    def disable(self) -> None:
        """Cuts every connection and refuses new ones, like a server that is down."""
        self._ask("POST", "", {"enabled": False})

    def enable(self) -> None:
        """Accepts connections again."""
        self._ask("POST", "", {"enabled": True})

    def restart(self) -> None:
        """Ends the program and starts it again at the same address, with the initial toxics.

        Every connection is cut, and new ones are refused for a moment.

        Raises:
            ServerFailed: The program did not start.
            ConfigurationError: Another program has taken the port.
        """
        self.stop()
        self._begin(self.endpoint_url.removeprefix("http://"))

    def stop(self) -> None:
        """Ends the program. Idempotent."""
        self._process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, listen: str) -> None:
        parts = urlsplit(self.upstream_url)
        self._folder = Path(tempfile.mkdtemp(prefix="concurrent-loader-proxy-"))
        try:
            self._process, self._api_url = _start(self._program, self._folder)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        try:
            made = _ask(
                "POST",
                f"{self._api_url}/proxies",
                {
                    "name": self._name,
                    "listen": listen,
                    "upstream": f"{parts.hostname}:{parts.port or 80}",
                    "enabled": True,
                },
            )
            self.endpoint_url = f"http://{made['listen']}"
            for name, attributes in self._toxics:
                self.add_toxic(name, name, stream="downstream", toxicity=1.0, **attributes)
        except BaseException:
            self.stop()
            raise

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        return _ask(method, f"{self._api_url}/proxies/{self._name}{path}", body)


@contextmanager
def toxiproxy(
    upstream: LocalS3 | str,
    *,
    latency_ms: int = 30,
    jitter_ms: int = 0,
    bandwidth_mb_s: float | None = 90,
    build: bool = True,
    progress: Progress | None = None,
) -> Iterator[Toxiproxy]:
    """Runs a TCP proxy with latency and limited bandwidth in front of a server during the ``with`` block.

    The latency applies to the bytes of responses, neither to connecting nor to uploads. Use
    `concurrent_loader.storage.testing.measure_latency` to measure the effective latency.

    Args:
        upstream: Server, or its URL (http only).
        latency_ms: Additional time between a request and the first byte of its response, 30 ms by default.
        jitter_ms: Largest uniform deviation from the latency, 0 ms by default.
        bandwidth_mb_s: Bandwidth of each connection, downstream, in 10^6 bytes per second; 90 by default, None for no
            limit.
        build: Whether toxiproxy may be built with Go if it is not installed.
        progress: Callback for lines of progress during the build; standard error by default.

    Raises:
        ToolUnavailable: toxiproxy is not installed and cannot be built.
        ServerFailed: The program did not start.

    Example:
        >>> from concurrent_loader.storage.testing import local_s3, toxiproxy
        >>> with local_s3() as server, toxiproxy(server) as proxy:  # doctest: +SKIP
        ...     store = open_store("s3://bucket", **server.through(proxy).storage_options())
    """
    upstream_url = upstream.endpoint_url if isinstance(upstream, LocalS3) else upstream
    parts = urlsplit(upstream_url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ConfigurationError("the proxy supports only http:// URLs", url=upstream_url)
    program = find_tool(TOXIPROXY, build=build, progress=progress)
    # Bandwidth comes first, so that bytes wait in the server's socket, as in reality, and not in the proxy.
    toxics: list[tuple[str, dict[str, int]]] = []
    if bandwidth_mb_s:
        toxics.append(("bandwidth", {"rate": round(bandwidth_mb_s * 1000)}))
    if latency_ms or jitter_ms:
        toxics.append(("latency", {"latency": latency_ms, "jitter": jitter_ms}))
    proxy = Toxiproxy(program, upstream_url, toxics)
    try:
        yield proxy
    finally:
        proxy.stop()


def _start(program: Path, folder: Path) -> tuple[SupervisedProcess, str]:
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        port = free_port()
        folder.mkdir(exist_ok=True)  # the end of the previous process deleted it
        process = SupervisedProcess(
            [str(program), "-host", "127.0.0.1", "-port", str(port)],
            # The proxy allocates garbage for every chunk of data. Only with rarer collections does it keep up with a
            # client on two cores. The memory limit is needed because abandoned large responses once took 12 GB.
            environment={
                "PATH": os.environ.get("PATH", os.defpath),
                "GOGC": "400",
                "GOMEMLIMIT": "2GiB",
                "LOG_LEVEL": "warn",
            },
            log=folder / "proxy.log",
            remove=folder,
        )
        try:
            _wait_ready(process, f"http://127.0.0.1:{port}")
        except ServerFailed as error:
            process.stop()
            if attempt == _PORT_ATTEMPTS or "already in use" not in str(error):
                raise
        except BaseException:
            process.stop()
            raise
        else:
            return process, f"http://127.0.0.1:{port}"
    raise AssertionError("the loop returns or raises")


def _wait_ready(process: SupervisedProcess, api_url: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not process.wait(_POLL_S):
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"toxiproxy did not answer within {_DEADLINE_S:.0f} s: {process.log_text()}", url=api_url
            )
        try:
            _ask("GET", f"{api_url}/version")
        except ConnectionFailed:
            continue
        return
    raise ServerFailed(f"toxiproxy ended: {process.log_text() or 'no output'}")


def _ask(method: str, url: str, body: object = None) -> Any:
    """Calls toxiproxy's HTTP API.

    Raises:
        ConfigurationError: toxiproxy rejected the call.
        ConnectionFailed: toxiproxy does not respond.
    """
    data = b"" if body is None else json.dumps(body).encode()
    answer = send(method, url, headers={"Content-Type": "application/json"}, body=data)
    if not 200 <= answer.status < 300:
        raise ConfigurationError(
            "toxiproxy rejected the call", url=url, got=answer.body.decode(errors="replace").strip() or answer.status
        )
    return json.loads(answer.body) if answer.body else None
