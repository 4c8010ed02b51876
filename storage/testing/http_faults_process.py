"""The faulty proxy in a process of its own, where what it costs must not be the measured program's.

The child calls `main` under a supervisor, so that it ends with its parent, whatever happens to that. It writes one
line, JSON with the addresses of the proxy and of its control, and serves until it is ended. The control takes ``PUT /``
with rates as JSON and answers ``GET /`` with the counters.
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

from storage.errors import ConnectionFailed
from storage.testing.failures import ServerFailed
from storage.testing.http_faults import HttpFaults, http_faults
from storage.testing.local_s3 import LocalS3
from storage.testing.processes import SupervisedProcess
from storage.testing.s3_requests import Answer, send
from storage.testing.wire_faults import Rates, seeded

__all__ = ["HttpFaultsProcess", "http_faults_process"]

_DEADLINE_S = 30.0
_POLL_S = 0.05
_PROGRAM = f"import sys; from {__name__} import main; main(sys.argv[1:])"
_PACKAGES = str(Path(__file__).resolve().parents[2])


class HttpFaultsProcess:
    """A proxy elsewhere; made by `http_faults_process`.

    Attributes:
        endpoint_url: What clients talk to instead of the server.
        upstream_url: The server.
    """

    def __init__(self, endpoint_url: str, upstream_url: str, control_url: str) -> None:
        self.endpoint_url = endpoint_url
        self.upstream_url = upstream_url
        self._control_url = control_url

    def __repr__(self) -> str:
        return f"HttpFaultsProcess({self.endpoint_url!r} -> {self.upstream_url!r})"

    def set_rates(self, rates: Rates) -> None:
        """Makes the faults of all requests from now on.

        Raises:
            ServerFailed: The process is gone.
        """
        self._ask("PUT", json.dumps(asdict(rates)).encode())

    def counts(self) -> dict[str, int]:
        """How often each fault took effect, by the name of its class, and ``"requests"``.

        Raises:
            ServerFailed: The process is gone.
        """
        counted: dict[str, int] = json.loads(self._ask("GET").body)
        return counted

    def _ask(self, method: str, body: bytes = b"") -> Answer:
        try:
            answer = send(method, self._control_url, body=body)
        except ConnectionFailed as error:
            raise ServerFailed("the proxy's process is gone", url=self.endpoint_url) from error
        if answer.status != 200:
            raise ServerFailed("the proxy refused", url=self.endpoint_url, got=answer.body.decode(errors="replace"))
        return answer


@contextmanager
def http_faults_process(upstream: LocalS3 | str, rates: Rates | None = None) -> Iterator[HttpFaultsProcess]:
    """Stands between a client and a server, in another process, for as long as the ``with`` block lasts.

    Args:
        upstream: The server, or its URL (http only).
        rates: Which faults; none at all by default. Only what is plain numbers can cross over, no script.

    Raises:
        ServerFailed: It did not start.
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
    raise ServerFailed(f"the proxy ended: {process.log_text() or 'it wrote nothing'}")


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

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
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
