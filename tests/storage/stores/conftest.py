"""What the tests of the S3 stores share."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import botocore.session
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@pytest.fixture(scope="session")
def s3_client(s3_server):
    """A plain botocore client: what others put into a bucket, and see in it."""
    options = s3_server.storage_options()
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=options["endpoint_url"],
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
        region_name=options["region"],
    )
    yield client
    client.close()


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory):
    """A private key and its self-signed certificate for 127.0.0.1, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nobody")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(scope="session")
def tls_certificate(tls_files):
    """The certificate that `tls` shows, as PEM."""
    begin = "-----BEGIN CERTIFICATE-----"
    return begin + tls_files.read_text().partition(begin)[2]


@pytest.fixture(scope="session")
def tls(tls_files):
    """A server's TLS, with a certificate that nobody knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls_files)
    return context


class ScriptedServer:
    """Answers HTTP requests by a function, and keeps their heads.

    Args:
        reply: Takes a request's head and returns an answer, or the head of an answer whose body never ends, in a tuple
            of one. An empty answer ends the connection.
        tls: For HTTPS.
        keeps_open: Whether a connection is kept for further requests; by default one answer ends it.

    Attributes:
        connections: The requests' heads, one list for each connection.
        num_ended: Number of connections that the client closed.
        sent_bytes: Length of the bodies that never end, so far.
    """

    def __init__(self, reply, tls=None, *, keeps_open=False):
        self._reply = reply
        self._tls = tls
        self._keeps_open = keeps_open
        self._tasks = set()
        self.connections = []
        self.num_ended = self.sent_bytes = 0

    @property
    def heads(self):
        """The heads of all requests."""
        return [head for heads in self.connections for head in heads]

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        self.connections.append(heads := [])
        ends = (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError)
        with contextlib.suppress(*ends), contextlib.closing(writer):
            while self._keeps_open or not heads:
                try:
                    heads.append(await reader.readuntil(b"\r\n\r\n"))
                except (ConnectionError, asyncio.IncompleteReadError):
                    self.num_ended += 1
                    return
                await self._take_body(heads[-1], reader, writer)
                if not (reply := self._reply(heads[-1])):
                    return
                await self._answer(reply, writer, without_body=heads[-1].startswith(b"HEAD"))

    async def _take_body(self, head, reader, writer):
        if b"expect: 100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                await reader.readexactly(int(line.split(b":")[1]))

    async def _answer(self, reply, writer, *, without_body):
        is_endless = isinstance(reply, tuple)
        answer = reply[0] + b"Connection: close\r\n\r\n" if is_endless else reply
        writer.write(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if without_body else answer)
        await writer.drain()
        filler = b"x" * (256 << 10)
        while is_endless and not without_body and self.sent_bytes < 512 << 20:
            writer.write(filler)
            self.sent_bytes += len(filler)
            await writer.drain()


@pytest.fixture(scope="session")
def scripted_server():
    """The class of a server that answers by a function."""
    return ScriptedServer
