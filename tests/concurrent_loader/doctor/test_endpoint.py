from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from pathlib import Path

import pytest

from concurrent_loader.doctor.endpoint import (
    BucketAddress,
    EndpointFailure,
    EndpointResponse,
    check_clock,
    check_endpoint,
    check_path_style,
    check_region,
    check_tls,
    probe_endpoint,
)
from concurrent_loader.doctor.finding import Level

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LOCAL = BucketAddress("photos", endpoint_url="http://127.0.0.1:9000")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answered(**facts: object) -> EndpointResponse:
    values: dict[str, object] = {
        "status": 403,
        "seconds": 0.01,
        "machine_time": NOON,
        "store_time": NOON,
        "region": None,
    }
    return EndpointResponse(**{**values, **facts})  # type: ignore[arg-type]


@asynccontextmanager
async def server(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(once, "127.0.0.1", 0, ssl=tls) as listening:
        yield listening.sockets[0].getsockname()[1]


def saying(head: str) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        await writer.drain()

    return serve


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the client hangs up


class TestAsk:
    async def test_reads_time_and_region_of_a_refusal(self, no_leaks: None) -> None:
        head = (
            f"HTTP/1.1 403 Forbidden\nDate: {format_datetime(NOON)}\nx-amz-bucket-region: eu-west-1\nContent-Length: 0"
        )
        async with server(saying(head)) as port:
            answer = await probe_endpoint(
                BucketAddress("photos", endpoint_url=f"http://127.0.0.1:{port}"), deadline_s=5, now=lambda: NOON
            )
        assert isinstance(answer, EndpointResponse)
        assert (answer.status, answer.store_time, answer.region, answer.machine_time) == (403, NOON, "eu-west-1", NOON)

    async def test_follows_no_redirect(self) -> None:
        head = "HTTP/1.1 301 Moved\nLocation: http://127.0.0.1:1/\nx-amz-bucket-region: eu-west-1\nContent-Length: 0"
        async with server(saying(head)) as port:
            answer = await probe_endpoint(
                BucketAddress("photos", endpoint_url=f"http://127.0.0.1:{port}"), deadline_s=5
            )
        assert isinstance(answer, EndpointResponse)
        assert answer.status == 301

    async def test_a_silent_server_is_left_at_the_deadline(self) -> None:
        async with server(silent) as port:
            failure = await probe_endpoint(
                BucketAddress("photos", endpoint_url=f"http://127.0.0.1:{port}"), deadline_s=0.2
            )
        assert isinstance(failure, EndpointFailure)
        assert failure.kind == "late"

    async def test_nobody_listens(self, unused_tcp_port: int) -> None:
        failure = await probe_endpoint(
            BucketAddress("photos", endpoint_url=f"http://127.0.0.1:{unused_tcp_port}"), deadline_s=5
        )
        assert isinstance(failure, EndpointFailure)
        assert failure.kind == "refused"

    async def test_something_else_listens(self) -> None:
        async with server(saying("220 mail.example ESMTP")) as port:
            failure = await probe_endpoint(
                BucketAddress("photos", endpoint_url=f"http://127.0.0.1:{port}"), deadline_s=5
            )
        assert isinstance(failure, EndpointFailure)
        assert failure.kind == "broken"

    async def test_a_certificate_of_nobody(self, certificate: Path) -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        async with server(saying("HTTP/1.1 403 Forbidden\nContent-Length: 0"), tls) as port:
            place = BucketAddress("photos", endpoint_url=f"https://127.0.0.1:{port}")
            failure = await probe_endpoint(place, deadline_s=5)
            unchecked = await probe_endpoint(
                BucketAddress("photos", place.endpoint_url, verify_tls=False), deadline_s=5
            )
            wanted = BucketAddress("photos", place.endpoint_url, ca_bundle=str(certificate))
            trusted = await probe_endpoint(wanted, deadline_s=5)
        assert isinstance(failure, EndpointFailure)
        assert failure.kind == "certificate"
        assert isinstance(unchecked, EndpointResponse)
        assert isinstance(trusted, EndpointResponse)

    async def test_a_server_without_tls(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()

        async with server(serve) as port:
            failure = await probe_endpoint(
                BucketAddress("photos", endpoint_url=f"https://127.0.0.1:{port}"), deadline_s=5
            )
        assert isinstance(failure, EndpointFailure)
        assert failure.kind == "tls"

    async def test_can_be_cancelled(self, no_leaks: None) -> None:
        heard = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            heard.set()
            await reader.read()

        async with server(serve) as port:
            asking = asyncio.create_task(
                probe_endpoint(BucketAddress("photos", endpoint_url=f"http://127.0.0.1:{port}"), deadline_s=60)
            )
            await heard.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate and its key in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nobody")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path / "certificate.pem"
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


class TestEndpoint:
    def test_a_refusal_is_an_answer(self) -> None:
        finding = check_endpoint(LOCAL, answered())
        assert finding.level is Level.OK
        assert finding.facts == {"status": 403, "answer_s": 0.01}

    def test_a_server_that_fails(self) -> None:
        assert check_endpoint(LOCAL, answered(status=503)).level is Level.FAIL

    @pytest.mark.parametrize("kind", ["name", "refused", "certificate", "tls", "late", "broken"])
    def test_every_failure_has_its_advice(self, kind: str) -> None:
        finding = check_endpoint(LOCAL, EndpointFailure(kind, 3.0))  # type: ignore[arg-type]
        assert finding.level is Level.FAIL
        assert finding.advice
        assert finding.facts == {"kind": kind}

    def test_without_an_endpoint_it_is_aws(self) -> None:
        assert BucketAddress("b", region="eu-west-1").server_url == "https://s3.eu-west-1.amazonaws.com"
        assert BucketAddress("b").server_url == "https://s3.amazonaws.com"


class TestTls:
    @pytest.mark.parametrize(
        ("url", "level"),
        [
            ("http://127.0.0.1:9000", Level.OK),
            ("http://localhost:9000", Level.OK),
            ("http://[::1]:9000", Level.OK),
            ("http://10.0.0.7:9000", Level.WARN),
            ("http://minio.example.org", Level.WARN),
            ("https://minio.example.org", Level.OK),
        ],
    )
    def test_by_address(self, url: str, level: Level) -> None:
        assert check_tls(BucketAddress("b", endpoint_url=url), answered()).level is level

    def test_refused_unchecked_and_unknown(self) -> None:
        place = BucketAddress("b", endpoint_url="https://minio.example.org")
        assert "certificate" in check_tls(place, EndpointFailure("certificate", 0.1)).message
        assert check_tls(place, EndpointFailure("certificate", 0.1)).level is Level.FAIL
        assert "certificate" not in check_tls(place, EndpointFailure("tls", 0.1)).message
        assert check_tls(place, EndpointFailure("tls", 0.1)).level is Level.FAIL
        assert check_tls(place, EndpointFailure("late", 0.1)).level is Level.WARN
        assert check_tls(BucketAddress("b", place.endpoint_url, verify_tls=False), answered()).level is Level.WARN


class TestPathStyle:
    @pytest.mark.parametrize(
        ("place", "path_style", "level"),
        [
            (LOCAL, True, Level.OK),
            (BucketAddress("b", "http://127.0.0.1:9000", path_style=False), False, Level.WARN),
            (BucketAddress("b"), False, Level.OK),
            (BucketAddress("with.dots"), False, Level.WARN),
            (BucketAddress("with.dots", path_style=True), True, Level.OK),
        ],
    )
    def test_is_what_the_client_does(self, place: BucketAddress, path_style: bool, level: Level) -> None:
        finding = check_path_style(place)
        assert (finding.facts["path_style"] if finding.facts else None) is path_style
        assert finding.level is level


class TestRegion:
    @pytest.mark.parametrize(
        ("place", "found", "level"),
        [
            (BucketAddress("b", region="us-east-1"), "us-east-1", Level.OK),
            (BucketAddress("b", region="us-east-1"), "eu-west-1", Level.FAIL),
            (BucketAddress("b", region="us-east-1"), None, Level.OK),
            (BucketAddress("b"), "eu-west-1", Level.WARN),
            (BucketAddress("b"), None, Level.WARN),
            (LOCAL, None, Level.OK),
        ],
    )
    def test_given_against_found(self, place: BucketAddress, found: str | None, level: Level) -> None:
        finding = check_region(place, answered(region=found))
        assert finding.level is level
        assert finding.facts["found"] == found
        if level is Level.FAIL:
            assert "eu-west-1" in finding.advice


class TestClock:
    @pytest.mark.parametrize(
        ("seconds", "level"),
        [(0, Level.OK), (30, Level.OK), (-90, Level.WARN), (600, Level.WARN), (3600, Level.FAIL), (-3600, Level.FAIL)],
    )
    def test_by_how_much(self, seconds: int, level: Level) -> None:
        finding = check_clock(answered(machine_time=NOON + timedelta(seconds=seconds)))
        assert finding.level is level
        assert abs(finding.facts["skew_s"] - seconds) <= 1
        if level is not Level.OK:
            assert ("ahead of" if seconds > 0 else "behind") in finding.message

    def test_a_server_without_a_date(self) -> None:
        assert check_clock(answered(store_time=None)).level is Level.WARN
        assert check_clock(EndpointFailure("late", 1.0)).level is Level.WARN
