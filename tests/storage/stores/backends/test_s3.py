from __future__ import annotations

import asyncio
import re
from contextlib import aclosing, closing, suppress

import pytest

from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigurationError,
    NotFound,
    StoreClosed,
    TransientError,
)
from concurrent_loader.storage.loop_thread import LoopThread
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


@pytest.fixture
async def bucket_store(s3_bucket):
    options = S3Options(**s3_bucket.storage_options, **SMALL_PARTS)
    async with S3Store(f"{s3_bucket.url}/below", options) as store:
        yield store


async def test_large_objects_go_up_in_parts(bucket_store):
    meta = await bucket_store.put("large", bytes(11 * MIB))
    assert meta.etag.endswith('-3"')


async def test_cancelled_and_failed_uploads_leave_no_parts(s3_client, s3_bucket, bucket_store):
    for steps in (50, 100, 200, 400):
        task = asyncio.create_task(bucket_store.put("large", bytes(40 * MIB)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await bucket_store.put_if_absent("taken", b"x")
    with pytest.raises(AlreadyExists):
        await bucket_store.put_if_absent("taken", bytes(11 * MIB))
    for name in ("large", "taken"):
        uploads = s3_client.list_multipart_uploads(Bucket=s3_bucket.name, Prefix=bucket_store._location.full_key(name))
        assert uploads.get("Uploads", []) == []


async def test_folder_markers_are_not_listed_but_empty_objects_are(s3_client, s3_bucket, bucket_store):
    s3_client.put_object(Bucket=s3_bucket.name, Key=bucket_store._location.full_key("folder/"), Body=b"")
    s3_client.put_object(Bucket=s3_bucket.name, Key=bucket_store._location.full_key("folder/empty"), Body=b"")
    s3_client.put_object(Bucket=s3_bucket.name, Key=bucket_store._location.full_key(""), Body=b"")
    assert [meta.key async for meta in bucket_store.list()] == ["folder/empty"]


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


@pytest.mark.parametrize(
    "changed",
    [
        {"secret_access_key": "wrong" * 4},
        {"access_key_id": "nobody" * 3},
        {"access_key_id": None, "secret_access_key": None, "anonymous": True},
    ],
)
async def test_credentials_that_do_not_work(s3_server, s3_bucket, changed):
    assert s3_server.kind != "moto", "moto checks no credentials: install Go or MinIO"
    async with S3Store(s3_bucket.url, S3Options(**(s3_bucket.storage_options | changed))) as store:
        with pytest.raises(AccessDenied) as caught:
            await store.get("key")
    assert not caught.value.retryable
    for secret in ("secret_access_key", "access_key_id"):
        assert (changed.get(secret) or "\0") not in str(caught.value)


async def test_a_profile_that_is_not_there(s3_bucket):
    options = S3Options(endpoint_url=s3_bucket.storage_options["endpoint_url"], profile="no-such-profile")
    async with S3Store(s3_bucket.url, options) as store:
        with pytest.raises(ConfigurationError, match="profile"):
            await store.get("key")


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


async def test_the_environment_serves_as_the_standard_chain(s3_bucket, monkeypatch):
    options = s3_bucket.storage_options
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret_access_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
    async with S3Store(f"{s3_bucket.url}/below") as store:
        await store.put("key", b"x")
        assert bytes((await store.get("key")).data) == b"x"


async def test_no_credentials_at_all(s3_bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    async with S3Store(s3_bucket.url, S3Options(endpoint_url=s3_bucket.storage_options["endpoint_url"])) as store:
        with pytest.raises(AccessDenied, match="credentials"):
            await store.get("key")


async def test_no_such_bucket(s3_server):
    async with S3Store("s3://no-such-bucket-here", S3Options(**s3_server.storage_options())) as store:
        for attempt in (store.get("key"), store.put("key", b"x"), store.delete("key")):
            with pytest.raises(NotFound, match="bucket"):
                await attempt
        with pytest.raises(NotFound, match="bucket"):
            [meta async for meta in store.list()]


def test_a_loop_that_has_ended_gives_way_to_the_next(s3_bucket):
    store = S3Store(f"{s3_bucket.url}/below", S3Options(**s3_bucket.storage_options))

    async def put_and_leave_no_connection():
        await store.put("key", b"x")
        await store._requests.close()  # what an ending loop leaves open, it warns about itself

    async def get_and_close():
        data = bytes((await store.get("key")).data)
        await store.close()
        return data

    asyncio.run(put_and_leave_no_connection())
    assert asyncio.run(get_and_close()) == b"x"


async def test_two_running_loops_are_refused(bucket_store):
    await bucket_store.put("key", b"x")
    with LoopThread(name="second") as second:

        async def get():
            return await bucket_store.get("key")

        with pytest.raises(StoreClosed, match="event loop"):
            await asyncio.to_thread(second.run, get())
    assert bytes((await bucket_store.get("key")).data) == b"x"


async def test_many_in_flight_with_few_connections(s3_bucket):
    options = S3Options(**s3_bucket.storage_options, max_connections=2)
    async with S3Store(f"{s3_bucket.url}/below", options) as store:
        await store.put("key", bytes(100_000))
        results = await asyncio.gather(*(store.get("key") for _ in range(50)))
        assert all(len(result.data) == 100_000 for result in results)
        assert len(store._requests._pool._connections) == 2


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
