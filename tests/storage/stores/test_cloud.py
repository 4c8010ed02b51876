from __future__ import annotations

import asyncio
import os
import warnings

import pytest

from storage.errors import AccessDenied, AlreadyExists, ConfigurationError, NotFound, StoreClosed
from storage.stores import cloud
from storage.stores.cloud import CloudStore
from storage.stores.opening import open_store
from storage.stores.options import AzureOptions, GoogleOptions, S3Options
from storage.stores.s3 import S3Store
from storage.testing.store_tests import ODD_KEYS, StoreTests

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
        return lambda: CloudStore(f"{s3_bucket.url}/below", options)


class TestOnMoto(StoreTests):
    over_network = True
    large_bytes = 11 * MIB

    @pytest.fixture
    def open_again(self, moto_bucket):
        options = S3Options(**moto_bucket.storage_options, **SMALL_PARTS)
        return lambda: CloudStore(f"{moto_bucket.url}/below", options)


@pytest.fixture
async def bucket_store(s3_bucket):
    options = S3Options(**s3_bucket.storage_options, **SMALL_PARTS)
    async with CloudStore(f"{s3_bucket.url}/below", options) as store:
        yield store


async def test_large_objects_go_up_in_parts(bucket_store):
    meta = await bucket_store.put("large", bytes(11 * MIB))
    assert meta.etag.endswith('-3"')


async def test_cancelled_uploads_leave_no_parts(s3_client, s3_bucket, bucket_store):
    for steps in (50, 100, 200, 400):
        task = asyncio.create_task(bucket_store.put("large", bytes(40 * MIB)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    uploads = s3_client.list_multipart_uploads(Bucket=s3_bucket.name, Prefix=bucket_store._location.full("large"))
    assert uploads.get("Uploads", []) == []


async def test_folder_markers_are_not_listed_but_empty_objects_are(s3_client, s3_bucket, bucket_store):
    s3_client.put_object(Bucket=s3_bucket.name, Key=bucket_store._location.full("folder/"), Body=b"")
    s3_client.put_object(Bucket=s3_bucket.name, Key=bucket_store._location.full("folder/empty"), Body=b"")
    s3_client.put_object(Bucket=s3_bucket.name, Key=bucket_store._location.full(""), Body=b"")
    assert [meta.key async for meta in bucket_store.list()] == ["folder/empty"]


async def test_other_clients_see_the_same_keys_and_etags(s3_bucket):
    options, url = s3_bucket.storage_options, f"{s3_bucket.url}/below/with space/100%/ü~+"
    stores = {client: open_store(url, client=client, **options) for client in ("obstore", "aiobotocore", "fsspec")}
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
    stores = [open_store(url, client=client, **options) for client in ("obstore", "aiobotocore", "fsspec") * 4]
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
    async with CloudStore(s3_bucket.url, S3Options(**(s3_bucket.storage_options | changed))) as store:
        with pytest.raises(AccessDenied) as caught:
            await store.get("key")
    assert not caught.value.retryable
    for secret in ("secret_access_key", "access_key_id"):
        assert (changed.get(secret) or "\0") not in str(caught.value)


async def test_a_profile_that_is_not_there(s3_bucket):
    options = S3Options(endpoint_url=s3_bucket.storage_options["endpoint_url"], profile="no-such-profile")
    async with CloudStore(s3_bucket.url, options) as store:
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
    for kind in (CloudStore, S3Store):
        async with kind(f"{s3_bucket.url}/below", given) as store:
            await store.put("key", b"x")
            assert bytes((await store.get("key")).data) == b"x"


async def test_explicit_keys_win_over_the_environment(s3_bucket, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "somebody-else")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    async with CloudStore(f"{s3_bucket.url}/below", S3Options(**s3_bucket.storage_options)) as store:
        await store.put("key", b"x")


async def test_the_environment_serves_as_the_standard_chain(s3_bucket, monkeypatch):
    options = s3_bucket.storage_options
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret_access_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
    async with CloudStore(f"{s3_bucket.url}/below") as store:
        await store.put("key", b"x")
        assert bytes((await store.get("key")).data) == b"x"


async def test_no_credentials_at_all(s3_bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    async with CloudStore(s3_bucket.url, S3Options(endpoint_url=s3_bucket.storage_options["endpoint_url"])) as store:
        with pytest.raises(AccessDenied, match="credentials"):
            await store.get("key")


async def test_no_such_bucket(s3_server):
    async with CloudStore("s3://no-such-bucket-here", S3Options(**s3_server.storage_options())) as store:
        for attempt in (store.get("key"), store.put("key", b"x"), store.delete("key")):
            with pytest.raises(NotFound, match="bucket"):
                await attempt
        with pytest.raises(NotFound, match="bucket"):
            [meta async for meta in store.list()]


def test_one_store_works_in_several_loops(s3_bucket):
    store = CloudStore(f"{s3_bucket.url}/below", S3Options(**s3_bucket.storage_options))

    async def put_and_get():
        await store.put("key", b"x")
        return bytes((await store.get("key")).data)

    assert [asyncio.run(put_and_get()) for _ in range(2)] == [b"x", b"x"]


async def test_a_new_store_in_a_forked_child_is_refused_or_another_client(bucket_store, s3_bucket):
    await bucket_store.put("key", b"x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        os._exit(_outcome_in_child(s3_bucket.url, s3_bucket.storage_options))
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _outcome_in_child(url, options):
    try:
        chosen = open_store(url, **options)
        refused = CloudStore(url, S3Options(**options)).get("key")
        try:
            refused.send(None)
        except StoreClosed:
            return 0 if isinstance(chosen, S3Store) else 1
    except BaseException:  # noqa: BLE001
        return 2
    return 3


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket/prefix", GoogleOptions(bearer_token="t")),
        ("gs://bucket", GoogleOptions(anonymous=True, endpoint_url="http://127.0.0.1:1")),
        ("az://container/prefix", AzureOptions(account_name="account", account_key="c2VjcmV0")),
        (
            "az://container",
            AzureOptions(account_name="account", sas_key="sv=1&sig=x", endpoint_url="http://127.0.0.1:1"),
        ),
    ],
)
def test_the_other_clouds_can_be_configured(url, options):
    store = CloudStore(url, options)
    assert store.url == url
    assert store._client() is store._client()


def test_options_of_another_cloud_are_refused():
    with pytest.raises(ConfigurationError):
        CloudStore("gs://bucket", S3Options())
    with pytest.raises(ConfigurationError):
        CloudStore("ftp://bucket")


@pytest.mark.parametrize(
    ("prefix", "before"),
    [("", None), ("img1", "img0~"), ("img0", None), ("a", None), ("b", "a~"), ("x/", None), ("é", None)],
)
def test_listing_begins_shortly_before_the_prefix(prefix, before):
    assert cloud._shortly_before(prefix) == before
    assert before is None or before < prefix
