"""No client follows a redirect: nothing of a request reaches another server, and nothing of its answer is believed."""

from __future__ import annotations

import contextlib

import pytest

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.stores.backends.aiobotocore import AiobotocoreStore
from concurrent_loader.storage.stores.backends.obstore import ObstoreStore
from concurrent_loader.storage.stores.backends.obstore_redirects import environment_proxy, redirect_guard
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.backends.s3 import S3Store
from concurrent_loader.storage.stores.options import AzureOptions, GoogleOptions

TOKEN = "session-token-of-the-test"
MIB = 1 << 20
LISTED = (
    b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>key</Key><Size>5</Size><ETag>x</ETag>"
    b"<LastModified>2015-10-21T07:28:00Z</LastModified></Contents></ListBucketResult>"
)


def answer(status, body=b"", headers=b""):
    return b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, headers, len(body), body)


def believable(head):
    """A success, whatever is asked."""
    facts = b'ETag: "x"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n'
    if b"list-type" in head or b"comp=list" in head:
        return answer(200, LISTED)
    if b"range:" in head.lower():
        return answer(206, b"evil!", facts + b"Content-Range: bytes 0-4/5\r\n")
    return answer(200, b"evil!", facts)


async def listed(store):
    return [meta async for meta in store.list("")]


async def opened(store):
    async with contextlib.aclosing(await store.open_range("key", 0, 5)) as pieces:
        return [bytes(piece) async for piece in pieces]


VERBS = {
    "get": lambda store: store.get("key"),
    "get_range": lambda store: store.get_range("key", 0, 5),
    "open_range": opened,
    "head": lambda store: store.head("key"),
    "list": listed,
    "put": lambda store: store.put("key", b"data"),
    "put_if_absent": lambda store: store.put_if_absent("key", b"data"),
    "put in parts": lambda store: store.put("key", bytes(6 * MIB)),
    "delete": lambda store: store.delete("key"),
}
PLACES = ["http://127.0.0.1:%d/bucket/key", "http://localhost:%d/bucket/key", "https://localhost:%d/bucket/key"]
REDIRECTS = [*((status, PLACES[0]) for status in (300, 301, 302, 303, 308)), *((307, place) for place in PLACES)]


def s3_options(port):
    return {
        "endpoint_url": f"http://127.0.0.1:{port}",
        "access_key_id": "id",
        "secret_access_key": "secret",
        "session_token": TOKEN,
        "region": "us-east-1",
        "multipart_bytes": "5MiB",
    }


def google(port):
    return ObstoreStore("gs://bucket", GoogleOptions(endpoint_url=f"http://127.0.0.1:{port}", bearer_token=TOKEN))


def azure(port):
    endpoint_url = f"http://127.0.0.1:{port}"
    return ObstoreStore("az://bucket", AzureOptions(account_name="a", bearer_token=TOKEN, endpoint_url=endpoint_url))


OPENERS = {
    "native": lambda port: open_store("s3://bucket", client="native", **s3_options(port)),
    "aiobotocore": lambda port: open_store("s3://bucket", client="aiobotocore", **s3_options(port)),
    "fsspec": lambda port: open_store("s3://bucket", client="fsspec", **s3_options(port)),
    "google": google,
    "azure": azure,
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", OPENERS)
async def test_no_redirect_is_followed(scripted_server, name, verb):
    async with scripted_server(believable) as other:
        redirect = b""
        async with scripted_server(lambda _: redirect) as server, OPENERS[name](server.port) as store:
            for status, place in REDIRECTS:
                redirect = answer(status, headers=b"Location: %s\r\n" % (place % other.port).encode())
                server.connections.clear()
                with pytest.raises(ConfigurationError, match=r"redirect|region") as caught:
                    await VERBS[verb](store)
                assert server.heads, (status, place)
                assert TOKEN not in str(caught.value)
                assert other.heads == [], (status, place)


@pytest.mark.parametrize("client", ["native", "aiobotocore"])
async def test_no_redirect_is_followed_from_https(scripted_server, client, tls):
    async with scripted_server(believable) as plain, scripted_server(believable, tls) as other:
        places = [
            f"http://127.0.0.1:{plain.port}/",
            f"http://localhost:{plain.port}/",
            f"https://localhost:{other.port}/",
            f"https://127.0.0.1:{other.port}/",  # another port of the same host
        ]
        redirect = b""
        async with scripted_server(lambda _: redirect, tls) as server:
            options = {**s3_options(0), "endpoint_url": f"https://127.0.0.1:{server.port}", "verify_tls": False}
            async with open_store("s3://bucket", client=client, **options) as store:
                for place in places:
                    redirect = answer(307, headers=b"Location: %s\r\n" % place.encode())
                    with pytest.raises(ConfigurationError, match="redirect"):
                        await store.get("key")
        assert len(server.heads) >= len(places)
        assert (plain.heads, other.heads) == ([], [])


@pytest.mark.parametrize("name", ["native", "aiobotocore", "fsspec"])
async def test_a_redirect_to_another_region_names_it(scripted_server, name):
    headers = b"Location: http://localhost:1/\r\nx-amz-bucket-region: eu-west-1\r\n"
    async with scripted_server(lambda _: answer(307, headers=headers)) as server, OPENERS[name](server.port) as store:
        with pytest.raises(ConfigurationError, match="so give the option region='eu-west-1'"):
            await store.get("key")


async def test_the_place_that_a_redirect_names_is_shown_without_its_secrets(scripted_server):
    headers = b"Location: http://user:pw@elsewhere:81/x?X-Amz-Signature=abc\r\n"
    async with (
        scripted_server(lambda _: answer(307, headers=headers)) as server,
        OPENERS["aiobotocore"](server.port) as store,
    ):
        with pytest.raises(ConfigurationError, match="the store redirects to http://elsewhere:81, and") as caught:
            await store.get("key")
    assert "pw" not in str(caught.value)
    assert "abc" not in str(caught.value)


async def test_a_request_is_not_sent_again_to_the_region_that_an_error_names(scripted_server):
    body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"
    async with scripted_server(lambda _: answer(400, body)) as server, OPENERS["aiobotocore"](server.port) as store:
        with pytest.raises(ConfigurationError, match="region='eu-west-1'"):
            await store.get("key")
        assert len(server.heads) == 1


async def test_behind_a_proxy_of_the_environment_s3_is_aiobotocores(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    monkeypatch.setenv("NO_PROXY", "")
    assert isinstance(open_store("s3://bucket", **s3_options(9)), AiobotocoreStore)
    async with OPENERS["native"](9) as store:
        with pytest.raises(ConfigurationError, match="client='aiobotocore'"):
            await store.get("key")
        with pytest.raises(ConfigurationError, match="client='aiobotocore'"):
            await listed(store)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert isinstance(open_store("s3://bucket", **s3_options(9)), S3Store)


def test_which_proxy_the_environment_names(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert environment_proxy("https://s3.amazonaws.com") is None
    monkeypatch.setenv("https_proxy", "http://a:1")
    assert environment_proxy("https://s3.amazonaws.com") == "http://a:1"
    assert environment_proxy("http://minio:9000") is None
    monkeypatch.setenv("ALL_PROXY", "http://b:1")
    assert environment_proxy("http://minio:9000") == "http://b:1"
    monkeypatch.setenv("NO_PROXY", "minio,.amazonaws.com")
    assert environment_proxy("http://minio:9000") is None
    assert environment_proxy("https://bucket.s3.amazonaws.com") is None


def test_what_obstore_is_told():
    assert redirect_guard("http://minio:9000/path") == {"proxy_url": "http://minio:9000"}
    assert redirect_guard("https://[::1]:9000", others=["tokens"]) == {
        "proxy_url": "http://255.255.255.255:9",
        "proxy_excludes": "tokens,::1",
    }
