from __future__ import annotations

import asyncio

import botocore.exceptions
import pytest

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
