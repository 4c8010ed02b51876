"""The network between: a TCP proxy that adds the latency and the limits of a real store, and its failures on demand."""

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

from storage.errors import ConfigurationError, ConnectionFailed
from storage.testing.binaries import TOXIPROXY, Progress, find_tool
from storage.testing.failures import ServerFailed
from storage.testing.local_s3 import LocalS3
from storage.testing.processes import SupervisedProcess
from storage.testing.s3_requests import send
from storage.testing.starting import free_port

__all__ = ["Toxiproxy", "toxiproxy"]

_DEADLINE_S = 15.0
_POLL_S = 0.02
_PORT_ATTEMPTS = 5


class Toxiproxy:
    """A proxy in front of one server; what it does to the bytes can be changed at any time.

    Changes take effect on open connections as well as on new ones. A connection that is stalled may keep a change, and
    all further ones, from being made for ever: cut the connections first (`disable`), or `restart`.

    Args:
        program: Toxiproxy.
        upstream_url: The server.
        toxics: What is in effect from the start: (name, attributes) of each, downstream.

    Attributes:
        endpoint_url: What clients talk to instead of the server.
        upstream_url: The server.
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
        """Adds something bad.

        Args:
            name: To remove it by.
            kind: ``latency`` (latency, jitter: ms), ``bandwidth`` (rate: KB/s), ``slow_close`` (delay: ms), ``timeout``
                (timeout: ms, 0 for ever), ``reset_peer`` (timeout: ms), ``slicer`` (average_size, size_variation:
                bytes; delay: µs) or ``limit_data`` (bytes).
            stream: ``downstream`` is from the server to the client.
            toxicity: The share of connections that it befalls, 0 to 1.
            **attributes: Of that kind.

        Raises:
            ConfigurationError: No such kind, or the name is taken.
        """
        self._ask(
            "POST",
            "/toxics",
            {"name": name, "type": kind, "stream": stream, "toxicity": toxicity, "attributes": attributes},
        )

    def remove_toxic(self, name: str) -> None:
        """Removes what was added under a name.

        Raises:
            ConfigurationError: No such name.
        """
        self._ask("DELETE", f"/toxics/{quote(name, safe='')}")

    def toxics(self) -> list[str]:
        """The names of what is in effect, in the order in which bytes meet them."""
        return [toxic["name"] for toxic in self._ask("GET", "/toxics")]

    def disable(self) -> None:
        """Cuts every connection and refuses new ones, as if the server were gone."""
        self._ask("POST", "", {"enabled": False})

    def enable(self) -> None:
        """Accepts connections again."""
        self._ask("POST", "", {"enabled": True})

    def restart(self) -> None:
        """Ends the program, however stuck, and starts it anew at the same address, as it was in the beginning.

        Every connection is cut, new ones are refused for a moment, and toxics that were added are gone.

        Raises:
            ServerFailed: It did not start.
            ConfigurationError: Somebody else has taken its port.
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
    """Stands between a client and a server for as long as the ``with`` block lasts.

    ::

        with local_s3() as server, toxiproxy(server) as proxy:
            store = open_store("s3://bucket", **server.through(proxy).storage_options())

    Latency is added to every answer's bytes, not to the making of a connection. Measure what really arrives with
    `storage.testing.measure_latency`. Uploads are not slowed down.

    Args:
        upstream: The server, or its URL (http only).
        latency_ms: Added between a request and the first byte of its answer; 0 for none.
        jitter_ms: Uniformly more or less than that; the median stays.
        bandwidth_mb_s: Of every connection, downstream, in 10^6 bytes; None for no limit.
        build: Whether toxiproxy may be built with Go if it is not here.
        progress: Gets a line now and then while it is built; standard error if None.

    Raises:
        ToolUnavailable: There is no toxiproxy and it cannot be built.
        ServerFailed: It did not start.
    """
    upstream_url = upstream.endpoint_url if isinstance(upstream, LocalS3) else upstream
    parts = urlsplit(upstream_url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ConfigurationError("the proxy stands in front of http:// only", url=upstream_url)
    program = find_tool(TOXIPROXY, build=build, progress=progress)
    # Bandwidth first: bytes wait in the server's socket, as they would, not by the megabyte in the proxy.
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
        folder.mkdir(exist_ok=True)  # the end of the one before took it along
        process = SupervisedProcess(
            [str(program), "-host", "127.0.0.1", "-port", str(port)],
            # A chunk of garbage for every chunk of data: collecting it less often is the difference between a proxy
            # that keeps up with two cores' worth of client and one that does not.
            # Up to a bound: hundreds of large answers that nobody waits for any more took 12 GB once.
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
    raise ServerFailed(f"toxiproxy ended: {process.log_text() or 'it wrote nothing'}")


def _ask(method: str, url: str, body: object = None) -> Any:
    """One call of toxiproxy's HTTP API.

    Raises:
        ConfigurationError: It refused.
        ConnectionFailed: It does not answer.
    """
    data = b"" if body is None else json.dumps(body).encode()
    answer = send(method, url, headers={"Content-Type": "application/json"}, body=data)
    if not 200 <= answer.status < 300:
        raise ConfigurationError(
            "toxiproxy refused", url=url, got=answer.body.decode(errors="replace").strip() or answer.status
        )
    return json.loads(answer.body) if answer.body else None
