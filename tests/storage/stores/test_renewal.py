"""Every S3 client against a server that knows which keys hold: renewal, one replay, and what is said after that."""

from __future__ import annotations

import asyncio
import re
import traceback
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from concurrent_loader.storage.errors import AccessDenied, CredentialsExpired, StoreError
from concurrent_loader.storage.stores.backends.open_store import open_store

CLIENTS = ["native", "aiobotocore", "fsspec"]
REFUSALS = {
    "ExpiredToken": b"400 Bad Request",
    "ExpiredTokenException": b"400 Bad Request",
    "InvalidToken": b"400 Bad Request",
    "TokenRefreshRequired": b"400 Bad Request",
    "RequestExpired": b"400 Bad Request",
    "InvalidAccessKeyId": b"403 Forbidden",
}


class Server:
    """An object of ten bytes for whoever signs with keys that hold; counts requests by access key."""

    def __init__(self, code="ExpiredToken"):
        self.code, self.seen, self.revoked = code, [], set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if length := re.search(rb"(?i)\r\ncontent-length: *(\d+)", head):
            if b"100-continue" in head.lower():
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await reader.readexactly(int(length[1]))
        key = re.search(rb"Credential=([\w-]+)/", head)[1].decode()
        token = re.search(rb"(?i)\r\nx-amz-security-token: *(\S+)", head)
        self.seen.append(key)
        more, body = b"", b"0123456789"
        if key in self.revoked:
            # S3 repeats the token that it does not take.
            body = b"<Error><Code>%s</Code><Token-0>%s</Token-0></Error>" % (
                self.code.encode(),
                token[1] if token else b"",
            )
            status, more = REFUSALS[self.code], b"Content-Type: application/xml\r\n"
        elif head.startswith(b"GET") and b"list-type=2" in head:
            status, body = b"200 OK", LISTING
        elif head.startswith(b"POST"):
            status, body = b"200 OK", b"<DeleteResult><Deleted><Key>root/key</Key></Deleted></DeleteResult>"
        elif head.startswith(b"DELETE"):
            status, body = b"204 No Content", b""
        elif b"bytes=2-4" in head:
            status, body, more = b"206 Partial Content", b"234", b"Content-Range: bytes 2-4/10\r\n"
        else:
            status = b"200 OK"
        size = len(body)
        if head.startswith((b"HEAD", b"PUT")):
            size, body = (size, b"") if head.startswith(b"HEAD") else (0, b"")
        facts = b'Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nETag: "abc"\r\nConnection: close\r\n'
        writer.write(b"HTTP/1.1 %s\r\n%s%sContent-Length: %d\r\n\r\n" % (status, facts, more, size) + body)
        writer.close()


LISTING = b"""<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>root/a</Key>
<LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>"abc"</ETag><Size>10</Size></Contents></ListBucketResult>"""


class Sts:
    def __init__(self, life=timedelta(hours=1)):
        self.num_calls, self.life = 0, life

    def __call__(self):
        self.num_calls += 1
        return {
            "access_key_id": f"id-{self.num_calls}",
            "secret_access_key": f"very-secret-{self.num_calls}",
            "session_token": f"session-token-{self.num_calls}",
            "expires_at": datetime.now(UTC) + self.life,
        }


def opened(server, client, **options):
    return open_store(
        "s3://bucket/root", client=client, endpoint_url=server.endpoint_url, region="us-east-1", **options
    )


def refusal_of(client, code="ExpiredToken"):
    """s3fs begins with a HEAD, whose answer has no body that could say why."""
    if client == "fsspec":
        return AccessDenied, StoreError
    return AccessDenied if code == "InvalidAccessKeyId" else CredentialsExpired


async def put(store):
    return await store.put("key", b"data")


async def stream(store):
    async with aclosing(await store.open_range("key", 2, 5)) as opened:
        return [bytes(piece) async for piece in opened]


async def listing(store):
    return [meta.key async for meta in store.list()]


CALLS = {
    "get": lambda store: store.get("key"),
    "get_range": lambda store: store.get_range("key", 2, 5),
    "open_range": stream,
    "head": lambda store: store.head("key"),
    "delete": lambda store: store.delete("key"),
    "put": put,
    "list": listing,
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("call", CALLS)
async def test_a_refused_call_is_repeated_once_with_new_keys(client, call):
    sts = Sts()
    async with Server() as server, opened(server, client, credentials=sts) as store:
        server.revoked = {"id-1"}
        await CALLS[call](store)
        assert sts.num_calls == 2
        # Told no more than 400, botocore asks where the bucket is before it gives up.
        assert server.seen == sorted(server.seen)
        assert 1 <= server.seen.count("id-1") <= 2
        await CALLS[call](store)
        assert sts.num_calls == 2


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("code", REFUSALS)
async def test_what_is_refused_again_is_an_error_that_shows_no_token(client, code):
    sts, refusal = Sts(), refusal_of(client, code)
    async with Server(code) as server, opened(server, client, credentials=sts) as store:
        server.revoked = {f"id-{number}" for number in range(100)}
        with pytest.raises(refusal) as caught:
            await store.get_range("key", 2, 5)
        assert sts.num_calls == 2
        if client != "fsspec":
            assert server.seen == ["id-1", "id-2"]
        with pytest.raises(refusal):
            await store.get_range("key", 2, 5)
        assert sts.num_calls == 2  # not at the rate of the requests
    assert not caught.value.retryable
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__context__)
    assert "session-token" not in shown
    assert "very-secret" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
async def test_fifty_refused_calls_ask_once(client):
    sts = Sts()
    async with Server() as server, opened(server, client, credentials=sts) as store:
        await store.get("key")
        server.revoked = {"id-1"}
        await asyncio.gather(*(store.get_range("key", 2, 5) for _ in range(50)))
    assert sts.num_calls == 2


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
async def test_short_lived_keys_are_renewed_without_a_refusal(client):
    sts = Sts(life=timedelta(seconds=0.5))
    async with Server() as server, opened(server, client, credentials=sts) as store:
        while len(set(server.seen)) < 3:  # as long as it takes
            await store.get_range("key", 2, 5)
    assert set(server.seen) <= {f"id-{number}" for number in range(1, sts.num_calls + 1)}
    assert len(server.seen) > 3


@pytest.mark.parametrize("client", CLIENTS)
async def test_explicit_keys_that_have_expired(client):
    options = {"access_key_id": "id-1", "secret_access_key": "very-secret", "session_token": "session-token-1"}
    async with Server() as server, opened(server, client, **options) as store:
        server.revoked = {"id-1"}
        with pytest.raises(refusal_of(client), match="expired") as caught:
            await store.get_range("key", 2, 5)
        assert set(server.seen) == {"id-1"}
    assert "session-token" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_function_that_fails_is_named(client):
    def vault():
        raise ValueError("very-secret words")

    async with Server() as server, opened(server, client, credentials=vault) as store:
        with pytest.raises(AccessDenied, match="vault failed") as caught:
            await store.get_range("key", 2, 5)
    assert server.seen == []
    assert "very-secret" not in "".join(traceback.format_exception(caught.value))
