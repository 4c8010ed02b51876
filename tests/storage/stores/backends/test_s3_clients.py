"""The tests that every client of S3 passes on a real server: uploads in parts, credentials, event loops."""

from __future__ import annotations

import asyncio

import pytest

from concurrent_loader.storage.errors import AccessDenied, AlreadyExists, ConfigurationError, NotFound, StoreClosed
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.stores.backends.aiobotocore import AiobotocoreStore
from concurrent_loader.storage.stores.backends.s3 import S3Store
from concurrent_loader.storage.stores.options import S3Options

pytestmark = pytest.mark.s3
MIB = 1 << 20
SMALL_PARTS = {"multipart_bytes": 5 * MIB, "part_bytes": 5 * MIB, "list_page_keys": 7}


@pytest.fixture(params=[S3Store, AiobotocoreStore])
def client(request):
    return request.param


def opened(client, bucket, **options):
    return client(f"{bucket.url}/below", S3Options(**bucket.storage_options, **options))


async def end_of_loop(store):
    """Closes the connections that an ending loop leaves open, about which it would warn."""
    await (store._requests if isinstance(store, S3Store) else store._bound).close()


@pytest.fixture
async def bucket_store(client, s3_bucket):
    async with opened(client, s3_bucket, **SMALL_PARTS) as store:
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
        key = bucket_store._location.full_key(name)
        uploads = s3_client.list_multipart_uploads(Bucket=s3_bucket.name, Prefix=key)
        assert uploads.get("Uploads", []) == []


async def test_folder_markers_are_not_listed_but_empty_objects_are(s3_client, s3_bucket, bucket_store):
    for key in ("folder/", "folder/empty", ""):
        s3_client.put_object(Bucket=s3_bucket.name, Key=bucket_store._location.full_key(key), Body=b"")
    assert [meta.key async for meta in bucket_store.list()] == ["folder/empty"]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"secret_access_key": "wrong" * 4}, AccessDenied),
        ({"access_key_id": "nobody" * 3}, AccessDenied),
        ({"access_key_id": None, "secret_access_key": None, "anonymous": True}, AccessDenied),
        ({"access_key_id": None, "secret_access_key": None, "profile": "no-such-profile"}, ConfigurationError),
    ],
)
async def test_credentials_that_do_not_work(client, s3_server, s3_bucket, changed, error):
    assert s3_server.kind != "moto", "moto checks no credentials: install Go or MinIO"
    async with client(s3_bucket.url, S3Options(**(s3_bucket.storage_options | changed))) as store:
        with pytest.raises(error) as caught:
            await store.get("key")
    assert not caught.value.retryable
    for secret in ("secret_access_key", "access_key_id"):
        assert (changed.get(secret) or "\0") not in str(caught.value)


async def test_no_credentials_at_all(client, s3_bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = S3Options(endpoint_url=s3_bucket.storage_options["endpoint_url"])
    async with client(s3_bucket.url, options) as store:
        with pytest.raises(AccessDenied, match="credentials"):
            await store.get("key")


async def test_the_environment_serves_as_the_standard_chain(client, s3_bucket, monkeypatch):
    options = s3_bucket.storage_options
    for name in ("access_key_id", "secret_access_key", "endpoint_url"):
        monkeypatch.setenv(f"AWS_{name.upper()}", options[name])
    monkeypatch.setenv("AWS_REGION", options["region"])
    async with client(f"{s3_bucket.url}/below") as store:
        await store.put("key", b"x")
        assert bytes((await store.get("key")).data) == b"x"


async def test_no_such_bucket(client, s3_server):
    async with client("s3://no-such-bucket-here", S3Options(**s3_server.storage_options())) as store:
        for attempt in (store.get("key"), store.put("key", b"x"), store.delete("key")):
            with pytest.raises(NotFound, match="bucket"):
                await attempt
        with pytest.raises(NotFound, match="bucket"):
            [meta async for meta in store.list()]


def test_a_loop_that_has_ended_gives_way_to_the_next(client, s3_bucket):
    store = opened(client, s3_bucket)

    async def put_and_leave_no_connection():
        await store.put("key", b"x")
        await end_of_loop(store)

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


async def test_many_in_flight_with_few_connections(client, s3_bucket):
    async with opened(client, s3_bucket, max_connections=2) as store:
        await store.put("key", bytes(100_000))
        results = await asyncio.gather(*(store.get("key") for _ in range(50)))
        assert all(len(result.data) == 100_000 for result in results)
