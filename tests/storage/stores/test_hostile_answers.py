"""Servers whose answers have no end, or make no sense: every client ends in a typed error, in little memory."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest

from concurrent_loader.storage.errors import (
    AccessDenied,
    ConnectionFailed,
    NotFound,
    ProtocolViolation,
    ServerError,
    StorageError,
    StoreError,
    TransientError,
)
from concurrent_loader.storage.stores.backends import s3_entries
from concurrent_loader.storage.stores.backends.open_store import open_store

MIB = 1 << 20
FACTS = b'ETag: "x"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n'


def answer(status, body=b"", headers=FACTS):
    return b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, headers, len(body), body)


def page(*keys, size=b"1", more=b"", modified=b"2015-10-21T07:28:00Z"):
    entry = b"<Contents><Key>%s</Key><Size>%s</Size><ETag>x</ETag><LastModified>%s</LastModified></Contents>"
    entries = b"".join(entry % (key, size, modified) for key in keys)
    return answer(200, b"<ListBucketResult>%s%s</ListBucketResult>" % (entries, more), b"")


def truncated(token):
    return b"<IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken>" % token


def opened(client, port):
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "access_key_id": "id", "secret_access_key": "s"}
    return open_store("s3://bucket", client=client, region="us-east-1", **options)


async def listed(store):
    return [meta.key async for meta in store.list("")]


READS = {
    "get": lambda store: store.get("key"),
    "get_range": lambda store: store.get_range("key", 0, 5),
    "head": lambda store: store.head("key"),
}
CALLS = {
    **READS,
    "put": lambda store: store.put("key", b"data"),
    "put_if_absent": lambda store: store.put_if_absent("key", b"data"),
    "delete": lambda store: store.delete("key"),
    "list": listed,
}
BOUNDED = [
    *((client, call) for client in ("native", "aiobotocore") for call in CALLS),
    *(("fsspec", call) for call in ("get_range", "head", "put", "list")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("client", "call"), [each for each in BOUNDED if each[1] != "head"])
async def test_an_error_without_an_end(scripted_server, client, call):
    async with scripted_server(lambda _: (b"HTTP/1.1 403 F\r\n",)) as server, opened(client, server.port) as store:
        tracemalloc.start()
        try:
            with pytest.raises(AccessDenied):
                await CALLS[call](store)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert server.sent_bytes < 64 * MIB
    assert peak_bytes < 64 * MIB


@pytest.mark.parametrize(("client", "call"), [(c, v) for c, v in BOUNDED if v in ("put", "put_if_absent", "list")])
async def test_a_success_without_an_end(scripted_server, client, call):
    async with scripted_server(lambda _: (b"HTTP/1.1 200 OK\r\n" + FACTS,)) as server:
        async with opened(client, server.port) as store:
            with pytest.raises(ProtocolViolation, match=r"longer than any"):
                await CALLS[call](store)
        assert server.sent_bytes < 128 * MIB


@pytest.mark.parametrize("client", ["native", "aiobotocore"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: itertools.repeat(page(b"a", b"b", more=truncated(b"t"))),
        lambda: itertools.repeat(page(more=truncated(b"t"))),
        lambda: itertools.cycle([page(b"a", more=truncated(b"t")), page(b"b", more=truncated(b"u"))]),
        lambda: (page(more=truncated(b"%d" % number)) for number in itertools.count()),
        lambda: itertools.repeat(page(b"b", b"a")),
        lambda: itertools.repeat(page(b"a", more=b"<IsTruncated>true</IsTruncated>")),
        lambda: itertools.repeat(page(b"a", size=b"1" + b"0" * 26)),
        lambda: itertools.repeat(page(b"a", size=b"-1")),
        lambda: itertools.repeat(page(b"a", size=b"many")),
        lambda: itertools.repeat(page(b"a", modified=b"yesterday, about noon")),
        lambda: itertools.repeat(page(b"a").replace(b"<Size>1</Size>", b"<Sizx>1</Sizx>")),
        lambda: itertools.repeat(answer(200, b"<ListBucketResult><Contents>")),
        lambda: itertools.repeat(answer(200, b"hello")),
    ],
    ids=["token", "token, no keys", "cycle", "empty pages", "order", "no token", "huge", "negative", "many", "date",
         "no size", "cut", "no XML"],
)  # fmt: skip
async def test_listings_that_make_no_sense(scripted_server, client, make, monkeypatch):
    monkeypatch.setattr(s3_entries, "_MAX_EMPTY_PAGES", 10)
    pages = make()
    async with scripted_server(lambda _: next(pages)) as server, opened(client, server.port) as store:
        # botocore itself takes a 200 with a broken document for a 500.
        with pytest.raises((ProtocolViolation, ServerError)):
            await listed(store)


async def test_a_listing_of_pages_of_which_one_is_empty(scripted_server):
    pages = iter([page(b"a", more=truncated(b"t")), page(more=truncated(b"u")), page(b"b")])
    async with scripted_server(lambda _: next(pages)) as server, opened("native", server.port) as store:
        assert await listed(store) == ["a", "b"]


HEADERS = {
    "no length": b"HTTP/1.0 %d X\r\n%s\r\nabcde",
    "chunked": b"HTTP/1.1 %d X\r\n%sTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
    "no content": b"HTTP/1.1 204 X\r\nConnection: close\r\n\r\n",
    "bad date": b"HTTP/1.1 %d X\r\n%sContent-Length: 5\r\nConnection: close\r\n\r\nabcde",
    "huge": b"HTTP/1.1 %d X\r\n%sContent-Length: 5\r\nConnection: close\r\n\r\nabcde",
}


@pytest.mark.parametrize("client", ["native", "aiobotocore"])
@pytest.mark.parametrize(
    ("call", "name"),  # only a Content-Range can hold a huge total
    [(call, name) for call in READS for name in HEADERS if name != "huge" or call == "get_range"],
)
async def test_headers_that_make_no_sense_are_worth_another_attempt(scripted_server, client, call, name):
    total = b"1" + b"0" * 26 if name == "huge" else b"5"
    facts = FACTS.replace(b"Wed, 21 Oct 2015", b"some day") if name == "bad date" else FACTS

    def reply(head):
        form, is_range = HEADERS[name], b"range:" in head.lower()
        if form.count(b"%") == 2:
            form %= (206, facts + b"Content-Range: bytes 0-4/%s\r\n" % total) if is_range else (200, facts)
        return form.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if head.startswith(b"HEAD") else form

    async with scripted_server(reply) as server, opened(client, server.port) as store:
        with pytest.raises(TransientError):
            await READS[call](store)


# -- fsspec's HTTP -----------------------------------------------------------------------------------------------------


async def test_nobody_listens_at_an_http_url(scripted_server):
    async with scripted_server(lambda _: b"") as server:
        url = f"http://127.0.0.1:{server.port}/data"
    async with open_store(url) as store:
        for call in (*READS.values(), listed):
            with pytest.raises(ConnectionFailed):
                await call(store)


@pytest.mark.parametrize(
    ("status", "expected"), [(404, NotFound), (403, AccessDenied), (500, ServerError), (418, StoreError)]
)
async def test_what_an_http_server_refuses(scripted_server, status, expected):
    async with (
        scripted_server(lambda _: answer(status)) as server,
        open_store(f"http://127.0.0.1:{server.port}/data") as store,
    ):
        for call in READS.values():
            with pytest.raises(expected):
                await call(store)


async def test_an_http_server_redirects(scripted_server):
    async with scripted_server(lambda _: answer(200, b"evil!")) as other:
        moved = answer(302, headers=b"Location: http://127.0.0.1:%d/data/key\r\n" % other.port)
        async with scripted_server(lambda _: moved) as server:
            url = f"http://127.0.0.1:{server.port}/data"
            async with open_store(url) as store:
                for call in (*READS.values(), listed):
                    with pytest.raises(StorageError, match=f"redirects to http://127.0.0.1:{other.port}, and"):
                        await call(store)
            assert other.heads == []
            async with open_store(url, allow_redirects=True) as store:
                assert (await store.get("key")).data == b"evil!"


async def test_an_http_server_whose_body_has_no_end(scripted_server):
    def reply(head):
        if head.startswith(b"HEAD"):
            return answer(200, b"abcde").removesuffix(b"abcde")
        return (b"HTTP/1.1 200 OK\r\n" + FACTS,)

    async with scripted_server(reply) as server, open_store(f"http://127.0.0.1:{server.port}/data") as store:
        with pytest.raises(ProtocolViolation):
            await store.get_range("key", 0, 5)
        with pytest.raises(TransientError):
            await store.get("key")
        with pytest.raises(ProtocolViolation):
            await listed(store)
    assert server.sent_bytes < 256 * MIB
