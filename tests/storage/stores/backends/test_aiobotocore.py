from __future__ import annotations

import asyncio

import botocore.exceptions
import pytest

from concurrent_loader.storage.errors import AccessDenied, AlreadyExists, ConfigurationError, NotFound, StoreClosed
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.stores.backends import aiobotocore_upload
from concurrent_loader.storage.stores.backends.aiobotocore import AiobotocoreStore
from concurrent_loader.storage.stores.options import S3Options
from concurrent_loader.storage.testing.conformance.store_tests import StoreTests

pytestmark = pytest.mark.s3
MIB = 1 << 20
SMALL_PARTS = {"multipart_bytes": 5 * MIB, "part_bytes": 5 * MIB, "list_page_keys": 7}


class TestOnServer(StoreTests):
    over_network = True
    folders = None  # MinIO takes both keys and lists only one of them
    large_bytes = 11 * MIB

    @pytest.fixture
    def open_again(self, s3_bucket):
        options = S3Options(**s3_bucket.storage_options, **SMALL_PARTS)
        return lambda: AiobotocoreStore(f"{s3_bucket.url}/below", options)


class TestOnMoto(StoreTests):
    over_network = True
    large_bytes = 11 * MIB

    @pytest.fixture
    def open_again(self, moto_bucket):
        options = S3Options(**moto_bucket.storage_options, **SMALL_PARTS)
        return lambda: AiobotocoreStore(f"{moto_bucket.url}/below", options)


@pytest.fixture
async def bucket_store(s3_bucket):
    async with AiobotocoreStore(
        f"{s3_bucket.url}/below", S3Options(**s3_bucket.storage_options, **SMALL_PARTS)
    ) as store:
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
    uploads = s3_client.list_multipart_uploads(Bucket=s3_bucket.name, Prefix=bucket_store._location.full_key("large"))
    taken = s3_client.list_multipart_uploads(Bucket=s3_bucket.name, Prefix=bucket_store._location.full_key("taken"))
    assert uploads.get("Uploads", []) == taken.get("Uploads", []) == []


@pytest.mark.parametrize("fails", [False, True])
async def test_an_upload_that_is_cancelled_as_it_begins_is_given_up(monkeypatch, no_leaks, fails):
    class Client:
        asked, answer, aborted = asyncio.Event(), asyncio.Event(), None

        async def create_multipart_upload(self, **place):
            self.asked.set()
            await self.answer.wait()
            if fails:
                raise botocore.exceptions.HTTPClientError(error="gone")
            return {"UploadId": "7"}

        async def abort_multipart_upload(self, **upload):
            self.aborted = upload["UploadId"]

    client, store = Client(), AiobotocoreStore("s3://bucket/below", S3Options(anonymous=True, **SMALL_PARTS))

    async def its_client():
        return client

    monkeypatch.setattr(store, "_client", its_client)
    putting = asyncio.create_task(store.put("large", bytes(11 * MIB)))
    await client.asked.wait()
    putting.cancel()
    await asyncio.sleep(0)
    client.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert client.aborted == (None if fails else "7")


class SlowParts:
    """A client whose server stores a part some time after it was sent, as long as the request was not cancelled.

    Args:
        keeps: How many aborts leave a part behind that the server was writing.
    """

    def __init__(self, *, keeps=0):
        self.keeps = keeps
        self.calls, self.sent, self.stored = [], asyncio.Event(), asyncio.Event()

    async def create_multipart_upload(self, **place):
        return {"UploadId": "7"}

    async def upload_part(self, *, PartNumber, **upload):  # noqa: N803 -- botocore's name
        self.sent.set()
        await self.stored.wait()
        self.calls.append(f"part {PartNumber}")
        return {"ETag": "x"}

    async def abort_multipart_upload(self, **upload):
        self.calls.append("abort")
        self.keeps -= 1

    async def list_parts(self, **upload):
        self.calls.append("list")
        if self.keeps < 0:
            raise botocore.exceptions.ClientError({"Error": {"Code": "NoSuchUpload"}}, "ListParts")
        return {"Parts": [{"PartNumber": 1}]}


async def cancelled_put(monkeypatch, client, meanwhile):
    store = AiobotocoreStore("s3://bucket/below", S3Options(anonymous=True, **SMALL_PARTS))

    async def its_client():
        return client

    monkeypatch.setattr(store, "_client", its_client)
    putting = asyncio.create_task(store.put("large", bytes(11 * MIB)))
    await client.sent.wait()
    putting.cancel()
    await meanwhile(putting)
    with pytest.raises(asyncio.CancelledError):
        await putting


async def test_parts_in_flight_are_waited_for_before_an_upload_is_aborted(monkeypatch, no_leaks):
    client = SlowParts()

    async def cancel_again_then_store(putting):
        for _ in range(20):
            await asyncio.sleep(0)
        putting.cancel()  # who is impatient does not leave parts behind
        for _ in range(20):
            await asyncio.sleep(0)
        assert (client.calls, putting.done()) == ([], False)
        client.stored.set()

    await cancelled_put(monkeypatch, client, cancel_again_then_store)
    assert client.calls == ["part 1", "part 2", "part 3", "abort", "list"]


async def test_parts_that_are_there_again_after_the_abort_are_aborted_again(monkeypatch, no_leaks):
    monkeypatch.setattr(aiobotocore_upload, "_ABORT_PAUSES_S", (0, 0, 0))
    client = SlowParts(keeps=1)

    async def store(putting):
        client.stored.set()

    await cancelled_put(monkeypatch, client, store)
    assert client.calls[-4:] == ["abort", "list", "abort", "list"]


async def test_parts_that_never_arrive_do_not_keep_the_caller(monkeypatch, no_leaks, caplog):
    monkeypatch.setattr(aiobotocore_upload, "_ABORT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(aiobotocore_upload, "_ABORT_PAUSES_S", (0, 0))
    client = SlowParts(keeps=9)

    async def nothing(putting):
        pass

    await cancelled_put(monkeypatch, client, nothing)
    assert client.calls == ["abort", "list", "abort", "list"]
    assert "could not be aborted" in caplog.text


async def test_folder_markers_are_not_listed(s3_client, s3_bucket, bucket_store):
    s3_client.put_object(Bucket=s3_bucket.name, Key=bucket_store._location.full_key("folder/"), Body=b"")
    s3_client.put_object(Bucket=s3_bucket.name, Key=bucket_store._location.full_key("folder/empty"), Body=b"")
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
async def test_credentials_that_do_not_work(s3_server, s3_bucket, changed, error):
    assert s3_server.kind != "moto", "moto checks no credentials: install Go or MinIO"
    async with AiobotocoreStore(s3_bucket.url, S3Options(**(s3_bucket.storage_options | changed))) as store:
        with pytest.raises(error) as caught:
            await store.get("key")
    assert not caught.value.retryable
    for secret in ("secret_access_key", "access_key_id"):
        assert (changed.get(secret) or "\0") not in str(caught.value)


async def test_no_credentials_at_all(s3_bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    async with AiobotocoreStore(
        s3_bucket.url, S3Options(endpoint_url=s3_bucket.storage_options["endpoint_url"])
    ) as store:
        with pytest.raises(AccessDenied, match="credentials"):
            await store.get("key")


async def test_the_environment_serves_as_the_standard_chain(s3_bucket, monkeypatch):
    options = s3_bucket.storage_options
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret_access_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
    monkeypatch.setenv("AWS_REGION", options["region"])
    async with AiobotocoreStore(f"{s3_bucket.url}/below") as store:
        await store.put("key", b"x")
        assert bytes((await store.get("key")).data) == b"x"


async def test_no_such_bucket(s3_server):
    async with AiobotocoreStore("s3://no-such-bucket-here", S3Options(**s3_server.storage_options())) as store:
        with pytest.raises(NotFound, match="bucket"):
            await store.get("key")
        with pytest.raises(NotFound, match="bucket"):
            await store.put("key", b"x")
        with pytest.raises(NotFound, match="bucket"):
            [meta async for meta in store.list()]


def test_a_loop_that_has_ended_gives_way_to_the_next(s3_bucket):
    store = AiobotocoreStore(f"{s3_bucket.url}/below", S3Options(**s3_bucket.storage_options))

    async def put_and_leave_no_connection():
        await store.put("key", b"x")
        await store._bound.close()  # what an ending loop leaves open, it warns about itself

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
    async with AiobotocoreStore(f"{s3_bucket.url}/below", options) as store:
        await store.put("key", bytes(100_000))
        results = await asyncio.gather(*(store.get("key") for _ in range(50)))
        assert all(len(result.data) == 100_000 for result in results)
