"""Both S3 clients against a server that answers what the test wants: every lie and failure has its class."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import traceback
from contextlib import aclosing

import pytest

from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigurationError,
    ConnectionFailed,
    CredentialsExpired,
    InvalidRange,
    NotFound,
    ObjectChanged,
    ProtocolViolation,
    ServerError,
    StorageError,
    StoreClosed,
    StoreError,
    Throttled,
    TransientError,
    TruncatedBody,
)
from concurrent_loader.storage.stores.backends.aiobotocore import AiobotocoreStore
from concurrent_loader.storage.stores.backends.obstore import ObstoreStore
from concurrent_loader.storage.stores.backends.s3 import S3Store
from concurrent_loader.storage.stores.options import AzureOptions, GoogleOptions, S3Options

FACTS = b'Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nETag: "abc"\r\n'
RANGE = b"Content-Range: bytes 10-19/100\r\n"


def answer(status, body=b"", headers=b"", length=None):
    announced = len(body) if length is None else length
    head = b"HTTP/1.1 %s\r\n%s%sContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, FACTS, headers, announced)
    return head + body


def refusal(status, code, more=b""):
    body = b'<?xml version="1.0"?><Error><Code>%s</Code><Message>m</Message>%s</Error>' % (code, more)
    return answer(status, body, b"Content-Type: application/xml\r\n")


BEHIND = b"<RequestTime>20260101T000000Z</RequestTime><ServerTime>2026-01-01T03:20:00Z</ServerTime>"
AHEAD = b"<RequestTime>20260101T000100Z</RequestTime><ServerTime>2026-01-01T00:00:00Z</ServerTime>"


RANGE_ANSWERS = {
    "cut short": (answer(b"206 P", b"x" * 5, RANGE, 10), TruncatedBody),
    "announced too short": (answer(b"206 P", b"x" * 5, RANGE), TransientError),
    "too long": (answer(b"206 P", b"x" * 12, RANGE), ProtocolViolation),
    "another range": (answer(b"206 P", b"x" * 10, b"Content-Range: bytes 20-29/100\r\n"), ProtocolViolation),
    "a shorter range": (answer(b"206 P", b"x" * 5, b"Content-Range: bytes 10-14/100\r\n"), ProtocolViolation),
    "no range": (answer(b"206 P", b"x" * 10), ProtocolViolation),
    "nonsense for a range": (answer(b"206 P", b"x" * 10, b"Content-Range: hello\r\n"), ProtocolViolation),
    "the whole object": (answer(b"200 OK", b"x" * 100), ProtocolViolation),
    "the object ends": (answer(b"206 P", b"x" * 5, b"Content-Range: bytes 10-14/15\r\n"), InvalidRange),
    "slow down": (refusal(b"503 S", b"SlowDown"), Throttled),
    "503 without a body": (answer(b"503 S"), Throttled),
    "too many requests": (refusal(b"429 T", b"TooManyRequests"), Throttled),
    "internal error": (refusal(b"500 E", b"InternalError"), ServerError),
    "bad gateway": (answer(b"502 B", b"<html>"), ServerError),
    "no such key": (refusal(b"404 N", b"NoSuchKey"), NotFound),
    "no such bucket": (refusal(b"404 N", b"NoSuchBucket"), NotFound),
    "access denied": (refusal(b"403 F", b"AccessDenied"), AccessDenied),
    "unknown key id": (refusal(b"403 F", b"InvalidAccessKeyId"), AccessDenied),
    "wrong secret": (refusal(b"403 F", b"SignatureDoesNotMatch"), AccessDenied),
    "clock": (refusal(b"403 F", b"RequestTimeTooSkewed"), AccessDenied),
    "clock behind": (refusal(b"403 F", b"RequestTimeTooSkewed", BEHIND), AccessDenied),
    "clock ahead": (refusal(b"403 F", b"RequestTimeTooSkewed", AHEAD), AccessDenied),
    "expired token": (refusal(b"400 B", b"ExpiredToken"), CredentialsExpired),
    "invalid token": (refusal(b"400 B", b"InvalidToken", b"<Token-0>my-token</Token-0>"), CredentialsExpired),
    "unauthorized": (refusal(b"401 U", b"Unauthorized"), AccessDenied),
    "changed": (refusal(b"412 P", b"PreconditionFailed"), ObjectChanged),
    "beyond the end": (refusal(b"416 R", b"InvalidRange"), InvalidRange),
    "wrong region": (
        refusal(b"400 B", b"AuthorizationHeaderMalformed", b"<Region>eu-west-1</Region>"),
        ConfigurationError,
    ),
    "unknown refusal": (refusal(b"418 T", b"Teapot"), StoreError),
    "reset": (None, ConnectionFailed),
    "noise": (b"garbage\r\n\r\n", (ConnectionFailed, ProtocolViolation)),
}
WORDS = {
    "clock": "timedatectl set-ntp true",
    "clock behind": "it is 3 h behind the store's",
    "clock ahead": "it is 60 s ahead of the store's",
    "wrong region": "the bucket is in 'eu-west-1', so give the option region='eu-west-1'",
    "no such bucket": "bucket",
    "expired token": "expired",
}


class Server:
    """Answers every request with the same bytes, and counts them."""

    def __init__(self, reply):
        self.reply = reply
        self.num_requests = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if b"expect: 100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                await reader.readexactly(int(line.split(b":")[1]))
        self.num_requests += 1
        if self.reply is None:
            writer.transport.abort()
            return
        writer.write(self.reply.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if head.startswith(b"HEAD") else self.reply)
        writer.close()


def options(endpoint_url):
    return S3Options(endpoint_url=endpoint_url, access_key_id="id", secret_access_key="very-secret", region="us-east-1")


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
@pytest.mark.parametrize("name", RANGE_ANSWERS)
async def test_answers_to_a_range(kind, name):
    reply, expected = RANGE_ANSWERS[name]
    async with Server(reply) as server, kind("s3://bucket/root", options(server.endpoint_url)) as store:
        with pytest.raises(expected) as caught:
            await store.get_range("some key", 10, 20, if_match='"abc"')
        # aiohttp asks a second time when a connection dies before the answer, botocore where the bucket's region is.
        if name not in ("reset", "wrong region"):
            assert server.num_requests == 1
    error = caught.value
    assert (error.url, error.key) == ("s3://bucket/root", "some key")
    assert (error.start, error.end) == (10, 20)
    assert WORDS.get(name, "") in str(error)
    shown = "".join(traceback.format_exception(error))
    assert "very-secret" not in shown
    assert "my-token" not in shown
    # The native client's refusals have nothing below them.
    vendorless = StorageError if kind is S3Store else InvalidRange | TruncatedBody | ProtocolViolation
    assert error.__cause__ is not None or isinstance(error, vendorless)


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
@pytest.mark.parametrize("name", RANGE_ANSWERS)
async def test_answers_to_a_range_that_is_read_piece_by_piece(kind, name):
    reply, expected = RANGE_ANSWERS[name]
    taken = b""
    async with Server(reply) as server, kind("s3://bucket/root", options(server.endpoint_url)) as store:
        with pytest.raises(expected) as caught:
            async with aclosing(await store.open_range("some key", 10, 20, if_match='"abc"', piece_bytes=3)) as opened:
                async for piece in opened:
                    taken += piece
    assert len(taken) <= 10
    assert set(taken) <= set(b"x")
    error = caught.value
    assert (error.url, error.key, error.start, error.end) == ("s3://bucket/root", "some key", 10, 20)
    assert "very-secret" not in str(error)


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
async def test_what_came_before_a_cut_is_handed_out(kind):
    reply = answer(b"206 P", b"01234", RANGE, 10)
    async with (
        Server(reply) as server,
        kind("s3://bucket", options(server.endpoint_url)) as store,
        aclosing(await store.open_range("key", 10, 20)) as opened,
    ):
        assert bytes(await anext(opened)) == b"01234"
        with pytest.raises(TruncatedBody):
            await anext(opened)


class KeepAlive(Server):
    """Answers as many requests as come over a connection, and counts connections."""

    def __init__(self, reply):
        super().__init__(reply)
        self._writers = []

    @property
    def num_connections(self):
        return len(self._writers)

    async def __aexit__(self, *_):
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await super().__aexit__()

    async def _serve(self, reader, writer):
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                self.num_requests += 1
                writer.write(self.reply)


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
async def test_fresh_connections_are_made_for_one_request_each(kind):
    reply = answer(b"206 P", b"0123456789", RANGE).replace(b"Connection: close\r\n", b"")
    async with KeepAlive(reply) as server, kind("s3://bucket", options(server.endpoint_url)) as store:
        for _ in range(3):
            await store.get_range("key", 10, 20)
        assert (server.num_requests, server.num_connections) == (3, 1)
        fresh = store.on_fresh_connections()
        for _ in range(3):
            assert bytes((await fresh.get_range("key", 10, 20)).data) == b"0123456789"
        assert (server.num_requests, server.num_connections) == (6, 4)
    with pytest.raises(StoreClosed):
        await fresh.get_range("key", 10, 20)


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
async def test_a_good_answer(kind):
    async with (
        Server(answer(b"206 P", b"0123456789", RANGE)) as server,
        kind("s3://bucket", options(server.endpoint_url)) as store,
    ):
        result = await store.get_range("key", 10, 20)
    assert bytes(result.data) == b"0123456789"
    assert (result.meta.size, result.meta.etag) == (100, '"abc"')


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
async def test_a_whole_object_cut_short(kind):
    async with (
        Server(answer(b"200 OK", b"x" * 50, length=100)) as server,
        kind("s3://bucket", options(server.endpoint_url)) as store,
    ):
        with pytest.raises(TruncatedBody):
            await store.get("key")


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
async def test_an_answer_without_etag_and_time(kind):
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    async with Server(reply) as server, kind("s3://bucket", options(server.endpoint_url)) as store:
        result = await store.get("key")
    assert (result.meta.etag, result.meta.last_modified) == (None, None)


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
async def test_nobody_listens(kind):
    async with Server(b"") as server:
        gone = server.endpoint_url
    async with kind("s3://bucket", options(gone)) as store:
        with pytest.raises(ConnectionFailed):
            await store.get("key")


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (refusal(b"412 P", b"PreconditionFailed"), AlreadyExists),
        (refusal(b"409 C", b"ConditionalRequestConflict"), AlreadyExists),
        (refusal(b"403 F", b"AccessDenied"), AccessDenied),
        (refusal(b"503 S", b"SlowDown"), Throttled),
    ],
)
async def test_answers_to_put_if_absent(kind, reply, expected):
    async with Server(reply) as server, kind("s3://bucket", options(server.endpoint_url)) as store:
        with pytest.raises(expected):
            await store.put_if_absent("key", b"data")
        assert server.num_requests == 1


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
async def test_a_redirect_to_another_region(kind):
    reply = answer(b"301 M", headers=b"x-amz-bucket-region: eu-west-1\r\n")
    async with Server(reply) as server, kind("s3://bucket", options(server.endpoint_url)) as store:
        with pytest.raises(ConfigurationError, match="so give the option region='eu-west-1'"):
            await store.get("key")


async def test_a_redirect_that_does_not_say_where():
    async with Server(answer(b"301 M")) as server, S3Store("s3://bucket", options(server.endpoint_url)) as store:
        with pytest.raises(ConfigurationError, match=r"region=\.\.\."):
            await store.get("key")


@pytest.mark.parametrize("kind", [S3Store, AiobotocoreStore])
async def test_a_clock_that_only_the_date_of_the_answer_betrays(kind):
    reply = refusal(b"403 F", b"RequestTimeTooSkewed").replace(
        b"Last-Mod", b"Date: Wed, 21 Oct 2015 07:28:00 GMT\r\nLast-Mod"
    )
    async with Server(reply) as server, kind("s3://bucket", options(server.endpoint_url)) as store:
        with pytest.raises(AccessDenied, match=r"is \d+ h ahead of"):
            await store.get("key")


def google(endpoint_url):
    return ObstoreStore("gs://bucket/root", GoogleOptions(endpoint_url=endpoint_url, bearer_token="t"))


def azure(endpoint_url):
    return ObstoreStore(
        "az://container/root", AzureOptions(account_name="a", anonymous=True, endpoint_url=endpoint_url)
    )


@pytest.mark.parametrize("open_cloud", [google, azure])
async def test_the_other_clouds_read_ranges(open_cloud):
    async with Server(answer(b"206 P", b"0123456789", RANGE)) as server, open_cloud(server.endpoint_url) as store:
        result = await store.get_range("key", 10, 20, if_match='"abc"')
    assert bytes(result.data) == b"0123456789"
    assert (result.meta.key, result.meta.size, result.meta.etag) == ("key", 100, '"abc"')


@pytest.mark.parametrize("open_cloud", [google, azure])
@pytest.mark.parametrize("name", ["another range", "slow down", "access denied", "changed", "beyond the end", "reset"])
async def test_the_other_clouds_fail_in_the_same_classes(open_cloud, name):
    reply, expected = RANGE_ANSWERS[name]
    async with Server(reply) as server, open_cloud(server.endpoint_url) as store:
        with pytest.raises(expected):
            await store.get_range("key", 10, 20)
        assert server.num_requests == 1


@pytest.mark.parametrize(
    ("open_cloud", "missing_key", "missing_bucket"),
    [(google, b"NoSuchKey", b"NoSuchBucket"), (azure, b"BlobNotFound", b"ContainerNotFound")],
)
async def test_the_other_clouds_delete_what_is_not_there(open_cloud, missing_key, missing_bucket):
    async with Server(refusal(b"404 N", missing_key)) as server, open_cloud(server.endpoint_url) as store:
        await store.delete("key")
        server.reply = refusal(b"404 N", missing_bucket)
        with pytest.raises(NotFound, match="bucket"):
            await store.get("key")


@pytest.mark.parametrize("name", ["cut short", "too long"])
async def test_a_signature_in_the_urls_is_not_shown_when_a_body_breaks(name, canary):
    signature = secrets.token_urlsafe(30)
    canary.watch(signature)
    reply, expected = RANGE_ANSWERS[name]
    async with Server(reply) as server:
        signed = AzureOptions(account_name="a", sas_key=f"sv=2024&sig={signature}", endpoint_url=server.endpoint_url)
        async with ObstoreStore("az://container/root", signed) as store:
            with pytest.raises(expected) as caught:
                async with aclosing(await store.open_range("key", 10, 20, piece_bytes=3)) as opened:
                    async for _ in opened:
                        pass
    assert signature not in "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
