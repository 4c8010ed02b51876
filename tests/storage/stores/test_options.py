from __future__ import annotations

import pytest

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.stores.options import S3Options


@pytest.mark.parametrize("size", [0, 1, 64 << 20, 160 << 30, 5 << 40])
def test_no_upload_needs_more_than_ten_thousand_parts(size):
    options = S3Options(part_bytes="16MiB")
    part_bytes = options.part_bytes_for(size)
    assert part_bytes >= 16 << 20
    assert -(-size // part_bytes) <= 10_000


def test_the_region_of_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert S3Options().region_or_environment == "eu-north-1"
    assert S3Options(region="us-west-2").region_or_environment == "us-west-2"
    monkeypatch.delenv("AWS_REGION")
    assert S3Options().region_or_environment is None


@pytest.mark.parametrize("client", ["native", "aiobotocore", "fsspec"])
@pytest.mark.parametrize("name", ["access_key_id", "secret_access_key", "session_token", "region"])
@pytest.mark.parametrize("value", ["trailing\n", " leading", "zero\x00byte", "ünicode"])
def test_what_no_request_can_carry_is_refused_for_every_client(client, name, value):
    keys = {"access_key_id": "id", "secret_access_key": "secret", "session_token": "token", "region": "us-east-1"}
    with pytest.raises(ConfigurationError, match=f"option '{name}'") as caught:
        open_store("s3://bucket", client=client, **{**keys, name: value})
    assert value not in str(caught.value)


@pytest.mark.parametrize("client", ["native", "aiobotocore", "fsspec"])
@pytest.mark.parametrize(
    "endpoint_url", ["http://", "http://:9000", "http://host:99999", "http://[::1", "http://host\n", "http://ü.example"]
)
def test_endpoints_that_cannot_be_are_refused_for_every_client(client, endpoint_url):
    with pytest.raises(ConfigurationError, match="option 'endpoint_url'"):
        open_store("s3://bucket", client=client, endpoint_url=endpoint_url)


@pytest.mark.parametrize("bucket", ["b b", "b\n", "bücket", "b:x", "b?x", "b%2Fx"])
def test_buckets_that_cannot_be_are_refused(bucket):
    with pytest.raises(ConfigurationError):
        open_store(f"s3://{bucket}/prefix")


def test_an_endpoint_given_to_s3fs_in_its_own_words_is_checked_too():
    with pytest.raises(ConfigurationError, match="must not hold credentials") as caught:
        open_store("s3://bucket", client="fsspec", client_kwargs={"endpoint_url": "http://user:pass-word@host"})
    assert "pass-word" not in str(caught.value)


@pytest.mark.parametrize("base", [Exception, BaseException])
async def test_a_panic_of_obstore_is_a_configuration_error(base, monkeypatch):
    panic = type("PanicException" if base is BaseException else "RustPanic", (base,), {})

    async def head(*arguments):
        raise panic("called `Result::unwrap()` on an `Err` value")

    monkeypatch.setattr("obstore.head_async", head)
    async with open_store("gs://bucket", endpoint_url="http://127.0.0.1:9", anonymous=True) as store:
        with pytest.raises(ConfigurationError, match="obstore cannot make a request") as caught:
            await store.head("key")
    assert type(caught.value.__cause__) is panic


async def test_an_endpoint_that_only_botocore_refuses_is_a_configuration_error():
    options = {"endpoint_url": "http://-:9", "access_key_id": "id", "secret_access_key": "secret"}
    async with open_store("s3://bucket", client="aiobotocore", **options) as store:
        with pytest.raises(ConfigurationError, match="Invalid endpoint"):
            await store.head("key")
