"""Runs the faulty HTTP proxy in its own process, so that its cost does not distort measurements.

The child calls `main` under a supervisor, so that it always ends with its parent. It prints one line of JSON with the
URLs of the proxy and of its control, and then serves. The control accepts ``PUT /`` with rates as JSON, and answers
``GET /`` with the counters.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec

from concurrent_loader.storage.errors import ConnectionFailed
from concurrent_loader.storage.testing.faults.http_proxy import HttpFaults, http_faults
from concurrent_loader.storage.testing.faults.wire_faults import Rates, seeded
from concurrent_loader.storage.testing.servers.errors import ServerFailed
from concurrent_loader.storage.testing.servers.local_s3 import LocalS3
from concurrent_loader.storage.testing.servers.processes import SupervisedProcess
from concurrent_loader.storage.testing.servers.s3_requests import Answer, send

__all__ = ["HttpFaultsProcess", "http_faults_process"]

_DEADLINE_S = 30.0
_POLL_S = 0.05
_PROGRAM = f"import sys; from {__name__} import main; main(sys.argv[1:])"
_PACKAGES = str(Path(str(sys.modules["concurrent_loader"].__file__)).parents[1])


class HttpFaultsProcess:
    """A proxy in another process, created by `http_faults_process`.

    Attributes:
        endpoint_url: URL to which clients connect instead of the server.
        upstream_url: URL of the server.

    Example:
        >>> from concurrent_loader.storage.testing import http_faults_process
        >>> with http_faults_process("http://127.0.0.1:9000") as proxy:  # doctest: +SKIP
        ...     proxy.counts()
        {'requests': 0}
    """

    def __init__(self, endpoint_url: str, upstream_url: str, control_url: str) -> None:
        self.endpoint_url = endpoint_url
        self.upstream_url = upstream_url
        self._control_url = control_url

    def __repr__(self) -> str:
        return f"HttpFaultsProcess({self.endpoint_url!r} -> {self.upstream_url!r})"

    def set_rates(self, rates: Rates) -> None:
        """Sets the fault rates of all later requests.

        Raises:
            ServerFailed: The process has ended.
        """
        self._ask("PUT", json.dumps(asdict(rates)).encode())

    def counts(self) -> dict[str, int]:
        """Returns the number of ``"requests"``, and how often each fault took effect, by class name.

        Raises:
            ServerFailed: The process has ended.
        """
        counted: dict[str, int] = json.loads(self._ask("GET").body)
        return counted

    def _ask(self, method: str, body: bytes = b"") -> Answer:
        try:
            answer = send(method, self._control_url, body=body)
        except ConnectionFailed as error:
            raise ServerFailed("the proxy's process has ended", url=self.endpoint_url) from error
        if answer.status != 200:
            raise ServerFailed(
                "the proxy rejected the request", url=self.endpoint_url, got=answer.body.decode(errors="replace")
            )
        return answer


@contextmanager
def http_faults_process(upstream: LocalS3 | str, rates: Rates | None = None) -> Iterator[HttpFaultsProcess]:
    """Runs a faulty HTTP proxy in another process during the ``with`` block.

    Args:
        upstream: Server, or its URL (http only).
        rates: Fault rates; no faults by default. Scripts cannot be passed to another process.

    Raises:
        ServerFailed: The proxy did not start.

    Example:
        >>> from concurrent_loader.storage.testing import http_faults_process, local_s3
        >>> with local_s3() as server, http_faults_process(server) as proxy:  # doctest: +SKIP
        ...     store = open_store("s3://bucket", **server.through(proxy).storage_options())
    """
    url = upstream.endpoint_url if isinstance(upstream, LocalS3) else upstream
    folder = Path(tempfile.mkdtemp(prefix="concurrent-loader-faults-"))
    try:
        process = SupervisedProcess(
            [sys.executable, "-c", _PROGRAM, url, json.dumps(asdict(rates or Rates()))],
            environment={"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": _PACKAGES},
            log=folder / "proxy.log",
            remove=folder,
        )
        try:
            endpoint_url, control_url = _wait_ready(process)
            yield HttpFaultsProcess(endpoint_url, url, control_url)
        finally:
            process.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_ready(process: SupervisedProcess) -> tuple[str, str]:
    deadline = time.monotonic() + _DEADLINE_S
    while not process.wait(_POLL_S):
        announced = process.log_text()
        if announced.endswith("}"):
            urls = json.loads(announced.splitlines()[-1])
            return urls["endpoint_url"], urls["control_url"]
        if time.monotonic() > deadline:
            raise ServerFailed(f"the proxy did not start within {_DEADLINE_S:.0f} s: {announced}")
    raise ServerFailed(f"the proxy ended: {process.log_text() or 'no output'}")


def _control(proxy: HttpFaults) -> type[BaseHTTPRequestHandler]:
    class Control(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, json.dumps({"requests": proxy.num_requests, **proxy.counts}).encode())

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                rates = msgspec.json.decode(body, type=Rates)
            except (msgspec.MsgspecError, ValueError) as error:
                self._answer(400, str(error).encode())
                return
            proxy.script = seeded(rates)
            self._answer(200, b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - name in the base class
            pass

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Control


def main(arguments: list[str]) -> None:
    """Serves until it is killed."""
    url, rates = arguments
    with http_faults(url, seeded(msgspec.json.decode(rates, type=Rates))) as proxy:
        control = HTTPServer(("127.0.0.1", 0), _control(proxy))
        control_url = f"http://127.0.0.1:{control.server_address[1]}"
        print(json.dumps({"endpoint_url": proxy.endpoint_url, "control_url": control_url}), flush=True)
        control.serve_forever()
