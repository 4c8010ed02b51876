"""The lister of the native client: what it sends, and what it makes of answers in every form that HTTP allows."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from concurrent_loader.storage.errors import (
    AccessDenied,
    ConfigurationError,
    ConnectionFailed,
    DeadlineExceeded,
    ProtocolViolation,
    Throttled,
    TruncatedBody,
)
from concurrent_loader.storage.stores.aws.settings import AwsSettings, botocore_certificates
from concurrent_loader.storage.stores.backends import s3_listing
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.http.tls import make_ssl_context

TOKEN = "session-token-of-the-test"


def options_of(server, **more):
    keys = {"access_key_id": "id", "secret_access_key": "secret", "session_token": TOKEN}
    return {"endpoint_url": f"http://127.0.0.1:{server.port}", "region": "eu-west-1", **keys, **more}


def opened(server, url="s3://bucket", **more):
    return open_store(url, client="native", **options_of(server, **more))


ENTRY = (
    '<Contents><Key>{}</Key><Size>1</Size><ETag>"x"</ETag><LastModified>2015-10-21T07:28:00Z</LastModified></Contents>'
)


def page(*keys, token=None, more=""):
    if token is not None:
        more += f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
    return f"<ListBucketResult>{''.join(ENTRY.format(key) for key in keys)}{more}</ListBucketResult>".encode()


def plain(body, status=200, headers=b""):
    return b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n%s" % (status, headers, len(body), body)


def chunked(body, end=b"0\r\n\r\n"):
    parts = b"".join(b"%x;name=value\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:]))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + parts + end


async def listed(store, prefix=""):
    return [meta.key async for meta in store.list(prefix)]


def query_of(head):
    return {name: values[0] for name, values in parse_qs(urlsplit(head.split()[1].decode()).query).items()}


def pages(*bodies):
    """One page for each continuation token, which is the page's number."""
    return lambda head: bodies[int(query_of(head).get("continuation-token", 0))]


async def test_what_is_sent_and_what_comes_of_it(scripted_server):
    async with (
        scripted_server(lambda _: plain(page("root/a/b")), keeps_open=True) as server,
        opened(server, "s3://bucket/root") as store,
    ):
        found = [meta async for meta in store.list("a/")]
        [[head]] = server.connections
    assert found[0].key == "a/b"
    assert (found[0].size, found[0].etag) == (1, '"x"')
    assert found[0].last_modified == datetime(2015, 10, 21, 7, 28, tzinfo=UTC)
    assert head.startswith(b"GET /bucket?encoding-type=url&list-type=2&max-keys=1000&prefix=root%2Fa%2F HTTP/1.1\r\n")
    assert b"\r\nhost: 127.0.0.1:%d\r\n" % server.port in head
    assert b"\r\nx-amz-security-token: %s\r\n" % TOKEN.encode() in head
    assert b"/eu-west-1/s3/aws4_request, SignedHeaders=" in head


async def test_anonymous_requests_are_not_signed(scripted_server):
    keys = {"access_key_id": None, "secret_access_key": None, "session_token": None}
    async with scripted_server(lambda _: plain(page("a")), keeps_open=True) as server:
        async with opened(server, anonymous=True, list_page_keys=7, **keys) as store:
            assert await listed(store) == ["a"]
        assert b"max-keys=7&" in server.connections[0][0]
        assert b"x-amz" not in server.connections[0][0]
        assert b"authorization" not in server.connections[0][0]


@pytest.mark.parametrize("write", [plain, chunked])
async def test_pages_share_a_connection_which_ends_with_the_store(scripted_server, write):
    server = scripted_server(
        pages(write(page("a", "b", token="1")), write(page(token="2")), write(page("c"))), keeps_open=True
    )
    async with server, opened(server) as store:
        assert await listed(store) == ["a", "b", "c"]
        assert [len(heads) for heads in server.connections] == [3]
        assert server.num_ended == 0
        await store.close()
        async with asyncio.timeout(5):
            while server.num_ended < 1:
                await asyncio.sleep(0.001)


async def test_fresh_connections_serve_one_page_each(scripted_server):
    server = scripted_server(pages(plain(page("a", token="1")), plain(page("b"))), keeps_open=True)
    async with server, opened(server) as store:
        assert await listed(store.on_fresh_connections()) == ["a", "b"]
        assert [len(heads) for heads in server.connections] == [1, 1]


@pytest.mark.parametrize("told", [True, False])
async def test_a_server_closes_the_connection_between_pages(scripted_server, told):
    bodies = pages(plain(page("a", token="1"), headers=b"Connection: close\r\n" if told else b""), plain(page("b")))
    server = scripted_server(
        lambda head: bodies(head) if told or not server.connections[-1][1:] else b"", keeps_open=True
    )
    async with server, opened(server) as store:
        assert await listed(store) == ["a", "b"]
        assert len(server.connections) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + plain(page("a")),
        b"HTTP/1.1 200 \r\nCONTENT-LENGTH:%d\r\n\r\n%s" % (len(page("a")), page("a")),
        chunked(page("a"), end=b"0\r\nTrailer: x\r\n\r\n"),
    ],
)
async def test_answers_in_other_forms(scripted_server, answer):
    async with scripted_server(lambda _: answer, keeps_open=True) as server, opened(server) as store:
        assert await listed(store) == ["a"]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_body_that_ends_with_the_connection(version):
    async def serve(reader, writer):
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/%s 200 OK\r\n\r\n%s" % (version, page("a")))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with open_store("s3://bucket", endpoint_url=endpoint, anonymous=True) as store:
            assert await listed(store) == ["a"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/2 200 OK\r\n\r\n", ProtocolViolation),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (70 << 10) + b"\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20, ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (17 << 20), ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (17 << 20), ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 204 No Content\r\n\r\n", ProtocolViolation),
        (plain(page("a"), status=206), ProtocolViolation),
        (plain(b"<html>not a listing</html>"), ProtocolViolation),
        (plain(page("a", token="1", more="<!DOCTYPE x>")), ProtocolViolation),
        (plain(b"<html><p>busy", status=503), Throttled),
        (plain(b"<Error><Code>SlowDown</Code></Error>", status=400), Throttled),
        (plain(b"<Error><Code>AccessDenied</Code></Error>", status=403), AccessDenied),
        (plain(b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>us-west-2</Region></Error>", status=400),
         ConfigurationError),
        (plain(b"<Error/>", status=301, headers=b"x-amz-bucket-region: us-west-2\r\n"), ConfigurationError),
    ],
)  # fmt: skip
async def test_what_is_not_a_page(scripted_server, answer, expected):
    async with scripted_server(lambda _: answer, keeps_open=True) as server, opened(server) as store:
        with pytest.raises(expected) as caught:
            await listed(store)
        assert "us-west-2" in str(caught.value) or expected is not ConfigurationError
        assert caught.value.url == "s3://bucket"
        assert len(server.connections) == 1, "no request is repeated here"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", ConnectionFailed),
        (b"HTTP/1.1 200", ConnectionFailed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<", TruncatedBody),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n<", TruncatedBody),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", TruncatedBody),
    ],
)
async def test_a_connection_that_ends_early(sent, expected):
    async def serve(reader, writer):
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with open_store("s3://bucket", endpoint_url=endpoint, anonymous=True) as store:
            with pytest.raises(expected):
                await listed(store)


async def test_a_page_that_comes_byte_by_byte_meets_a_deadline(monkeypatch):
    monkeypatch.setattr(s3_listing, "_PAGE_S", 0.1)
    drips = []

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not writer.is_closing() and not reader.at_eof():
                writer.write(b"<")
                drips.append(1)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.01)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with open_store("s3://bucket", endpoint_url=endpoint, anonymous=True) as store:
            with pytest.raises(DeadlineExceeded):
                await listed(store)
    assert len(drips) > 1


async def silent_server(stack):
    """A server that reads and never answers; returns its URL and an event for the end of its connection."""
    asked, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader, writer):
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            ended.set()

    server = await stack.enter_async_context(await asyncio.start_server(serve, "127.0.0.1", 0))
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked, ended


async def test_a_cancelled_listing_closes_its_connection():
    async with contextlib.AsyncExitStack() as stack:
        endpoint, asked, ended = await silent_server(stack)
        store = await stack.enter_async_context(open_store("s3://bucket", endpoint_url=endpoint, anonymous=True))
        listing = asyncio.create_task(listed(store))
        async with asyncio.timeout(5):
            await asked.wait()
            listing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await listing
            await ended.wait()


@pytest.mark.parametrize("quoted", [True, False])
async def test_odd_keys_survive(scripted_server, quoted):
    keys = sorted(["a b", "a+b", "a%20b", "a&b", "ü", "\U0001f600"], key=str.encode)
    if quoted:
        body = page(*map(quote, keys), more="<EncodingType>url</EncodingType>")
    else:  # as servers do that do not know ``encoding-type``
        body = page(*(key.replace("&", "&amp;") for key in keys))
    async with scripted_server(lambda _: plain(body), keeps_open=True) as server, opened(server) as store:
        assert await listed(store) == keys


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
async def test_a_host_that_cannot_be(host):
    async with open_store("s3://bucket", endpoint_url=f"http://{host}", anonymous=True, region="x") as store:
        with pytest.raises(ConfigurationError, match="host name"):
            await listed(store)


async def test_a_prefix_that_is_no_unicode(scripted_server):
    async with scripted_server(lambda _: plain(page()), keeps_open=True) as server, opened(server) as store:
        with pytest.raises(ConfigurationError, match="valid Unicode"):
            await listed(store, "\udcff")


@pytest.mark.parametrize(
    ("settings", "path_style", "bucket_url"),
    [
        ((None, None), None, "https://bucket.s3.us-east-1.amazonaws.com"),
        ((None, "eu-west-1"), True, "https://s3.eu-west-1.amazonaws.com/bucket"),
        ((None, "cn-north-1"), None, "https://bucket.s3.cn-north-1.amazonaws.com.cn"),
        (("http://host:9000/", "x"), None, "http://host:9000/bucket"),
        (("http://host:9000/base", "x"), False, "http://bucket.host:9000/base"),
    ],
)
def test_where_requests_for_a_bucket_go(settings, path_style, bucket_url):
    address = AwsSettings(*settings, None).address("bucket", path_style=path_style)
    assert address.bucket_url == bucket_url
    assert address.path_style == bucket_url.endswith("/bucket")


def test_a_bucket_with_a_dot_stands_in_the_path():
    assert AwsSettings(None, None, None).address("a.b", path_style=None).path_style


@pytest.mark.parametrize("trusted", ["by a bundle", "without a check", "no"])
async def test_the_server_has_a_certificate_that_is_trusted(
    scripted_server, tls, tls_certificate, monkeypatch, tmp_path, trusted
):
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# Überschrift\n{tls_certificate}", encoding="utf-8")
    if trusted == "by a bundle":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    async with scripted_server(lambda _: plain(page("a")), tls, keeps_open=True) as server:
        options = {"endpoint_url": f"https://127.0.0.1:{server.port}", "verify_tls": trusted != "without a check"}
        async with opened(server, **options) as store:
            if trusted == "no":
                with pytest.raises(ConnectionFailed, match=f"https://127.0.0.1:{server.port}"):
                    await listed(store)
                assert server.connections == []
            else:
                assert await listed(store) == ["a"]


def test_where_the_system_has_no_certificates_botocores_are_trusted(monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    context = make_ssl_context(verify=True, fallback_bundle=botocore_certificates())
    assert context.cert_store_stats()["x509_ca"] > 50
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


async def test_a_bundle_that_holds_no_certificates(monkeypatch, tmp_path):
    (tmp_path / "bundle.pem").write_text("nothing")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "bundle.pem"))
    async with open_store("s3://bucket", endpoint_url="https://127.0.0.1:9", anonymous=True, region="x") as store:
        with pytest.raises(ConfigurationError):
            await listed(store)
