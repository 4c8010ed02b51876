from __future__ import annotations

import asyncio
import re
from contextlib import aclosing, closing, suppress

import pytest

from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    StoreClosed,
    TransientError,
)
from concurrent_loader.storage.stores.backends import s3_upload
from concurrent_loader.storage.stores.backends.aiobotocore import AiobotocoreStore
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.backends.s3 import S3Store
from concurrent_loader.storage.stores.options import S3Options
from concurrent_loader.storage.testing.conformance.store_tests import ODD_KEYS, StoreTests

pytestmark = pytest.mark.s3
MIB = 1 << 20
SMALL_PARTS = {"multipart_bytes": 5 * MIB, "part_bytes": 5 * MIB, "list_page_keys": 7}


class TestOnServer(StoreTests):
    over_network = True
    survives_fork = True
    folders = None  # MinIO takes both keys and lists only one of them
    large_bytes = 11 * MIB

    @pytest.fixture
    def open_again(self, s3_bucket):
        options = S3Options(**s3_bucket.storage_options, **SMALL_PARTS)
        return lambda: S3Store(f"{s3_bucket.url}/below", options)


class TestOnMoto(StoreTests):
    over_network = True
    survives_fork = True
    large_bytes = 11 * MIB

    @pytest.fixture
    def open_again(self, moto_bucket):
        options = S3Options(**moto_bucket.storage_options, **SMALL_PARTS)
        return lambda: S3Store(f"{moto_bucket.url}/below", options)


async def test_connections_are_bounded(s3_bucket):
    options = S3Options(**s3_bucket.storage_options, max_connections=2)
    async with S3Store(f"{s3_bucket.url}/below", options) as store:
        await store.put("key", b"x")
        await asyncio.gather(*(store.get("key") for _ in range(50)))
        assert len(store._requests._pool._connections) == 2


async def test_other_clients_see_the_same_keys_and_etags(s3_bucket):
    options, url = s3_bucket.storage_options, f"{s3_bucket.url}/below/with space/100%/ü~+"
    stores = {client: open_store(url, client=client, **options) for client in ("native", "aiobotocore", "fsspec")}
    for writer in stores.values():
        await asyncio.gather(*(writer.put(key, key.encode()) for key in ODD_KEYS))
        metas = [{m.key: (m.size, m.etag) async for m in reader.list()} for reader in stores.values()]
        assert metas[0] == metas[1] == metas[2]
        assert list(metas[0]) == sorted(ODD_KEYS, key=str.encode)
        for reader in stores.values():
            results = await asyncio.gather(*(reader.get(key) for key in ODD_KEYS))
            assert [bytes(result.data).decode() for result in results] == list(ODD_KEYS)
            assert [(r.meta.size, r.meta.etag) for r in results] == [metas[0][key] for key in ODD_KEYS]
        await asyncio.gather(*(writer.delete(key) for key in ODD_KEYS))
    for store in stores.values():
        assert [meta async for meta in store.list()] == []
        await store.close()


async def test_put_if_absent_has_one_winner_among_clients(s3_bucket):
    options, url = s3_bucket.storage_options, f"{s3_bucket.url}/below"
    stores = [open_store(url, client=client, **options) for client in ("native", "aiobotocore", "fsspec") * 4]
    results = await asyncio.gather(*(store.put_if_absent("key", b"x") for store in stores), return_exceptions=True)
    assert sum(not isinstance(result, AlreadyExists) for result in results) == 1
    for store in stores:
        await store.close()


async def test_a_profile(s3_bucket, monkeypatch, tmp_path):
    options = s3_bucket.storage_options
    (tmp_path / "config").write_text(f"[profile mine]\nregion = {options['region']}\n")
    (tmp_path / "credentials").write_text(
        f"[mine]\naws_access_key_id = {options['access_key_id']}\n"
        f"aws_secret_access_key = {options['secret_access_key']}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    # What stands in the environment for others must not mix with the profile's keys.
    monkeypatch.setenv("AWS_SESSION_TOKEN", "somebody else's")
    given = S3Options(endpoint_url=options["endpoint_url"], profile="mine")
    for kind in (S3Store, AiobotocoreStore):
        async with kind(f"{s3_bucket.url}/below", given) as store:
            await store.put("key", b"x")
            assert bytes((await store.get("key")).data) == b"x"


async def test_explicit_keys_win_over_the_environment(s3_bucket, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "somebody-else")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    async with S3Store(f"{s3_bucket.url}/below", S3Options(**s3_bucket.storage_options)) as store:
        await store.put("key", b"x")


async def test_cancelled_requests_leave_no_place_taken(s3_bucket, no_leaks):
    options = S3Options(**s3_bucket.storage_options, max_connections=2)
    async with S3Store(f"{s3_bucket.url}/below", options) as store:
        await store.put("key", bytes(1_000_000))
        for steps in range(12):
            getting = [asyncio.create_task(store.get("key")) for _ in range(6)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for task in getting[::2]:
                task.cancel()
            await asyncio.gather(*getting, return_exceptions=True)
        async with asyncio.timeout(10):
            await asyncio.gather(*(store.get("key") for _ in range(4)))


async def test_a_stream_that_is_not_read_on_is_not_received(s3_bucket):
    async with S3Store(f"{s3_bucket.url}/below", S3Options(**s3_bucket.storage_options)) as store:
        await store.put("key", bytes(40 * MIB))
        async with aclosing(await store.open_range("key", 0, 40 * MIB, piece_bytes=MIB)) as opened:
            assert len(await anext(opened)) == MIB
            [connection] = store._requests._pool._connections
            for _ in range(100):
                await asyncio.sleep(0)
            assert connection._is_paused
            assert connection.num_buffered == 0
            assert sum([len(piece) async for piece in opened]) == 39 * MIB


async def test_close_ends_every_connection(s3_bucket, no_leaks):
    store = S3Store(f"{s3_bucket.url}/below", S3Options(**s3_bucket.storage_options))
    await store.put("key", bytes(10 * MIB))
    getting = [asyncio.create_task(store.get("key")) for _ in range(4)]
    opened = await store.open_range("key", 0, 10 * MIB)
    pool = store._requests._pool
    await store.close()
    assert not pool._connections
    results = await asyncio.gather(*getting, return_exceptions=True)
    assert all(isinstance(result, TransientError | StoreClosed) or result.meta.size for result in results)
    await opened.aclose()


class PartsServer:
    """Answers an upload in parts; those of parts only when told."""

    def __init__(self):
        self.asked, self.answer, self.said = asyncio.Event(), asyncio.Event(), []
        self.part = b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: 0\r\n\r\n"

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()

    def opened(self):
        endpoint_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return S3Store("s3://bucket", S3Options(endpoint_url=endpoint_url, anonymous=True, **SMALL_PARTS))

    async def _serve(self, reader, writer):
        with suppress(ConnectionError, asyncio.IncompleteReadError), closing(writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                method = head.split()[0].decode()
                if b"expect:" in head:
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                self.said.append(f"{method} begins")
                body = b"<InitiateMultipartUploadResult><UploadId>7</UploadId></InitiateMultipartUploadResult>"
                answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                if method == "PUT":
                    self.asked.set()
                    await self.answer.wait()
                    answer = self.part
                self.said.append(f"{method} ends")
                writer.write(answer if method != "DELETE" else b"HTTP/1.1 204 No Content\r\n\r\n")


@pytest.mark.parametrize("how", ["cancelled", "refused"])
async def test_an_upload_is_aborted_after_its_parts_in_flight(how, no_leaks):
    async with PartsServer() as server, server.opened() as store:
        putting = asyncio.create_task(store.put("large", bytes(40 * MIB)))
        await server.asked.wait()
        if how == "cancelled":
            putting.cancel()
        else:
            server.part = b"HTTP/1.1 403 F\r\nContent-Length: 0\r\n\r\n"
        for _ in range(100):
            await asyncio.sleep(0)
        assert "DELETE begins" not in server.said
        server.answer.set()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else AccessDenied):
            await putting
        assert server.said[-2:] == ["DELETE begins", "DELETE ends"]
        assert server.said.count("PUT begins") == server.said.count("PUT ends") <= 4


async def test_an_abort_waits_for_parts_up_to_a_bound(monkeypatch, caplog, no_leaks):
    monkeypatch.setattr(s3_upload, "_ABORT_S", 0.05)
    async with PartsServer() as server, server.opened() as store:
        putting = asyncio.create_task(store.put("large", bytes(40 * MIB)))
        await server.asked.wait()
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert "DELETE begins" in server.said
        server.answer.set()
