from __future__ import annotations

import pytest

from concurrent_loader.storage import open_store
from concurrent_loader.storage.errors import AccessDenied, StoreError
from concurrent_loader.storage.testing.servers.minio_users import add_user, disable_user, remove_user

pytestmark = pytest.mark.s3


@pytest.fixture
def minio(s3_server):
    if s3_server.kind != "minio":
        pytest.skip("only MinIO has users of its own")
    return s3_server


async def test_a_user_may_until_the_user_is_gone(minio, s3_bucket, canary):
    user = add_user(minio)
    canary.watch(user.secret_access_key)
    assert user.secret_access_key not in repr(user)
    async with open_store(s3_bucket.url, **user.storage_options()) as store:
        await store.put("key", b"data")
        assert bytes((await store.get("key")).data) == b"data"
        for end in (disable_user, remove_user):
            end(minio, user.access_key_id)
            with pytest.raises(AccessDenied, match="does not know the access key"):
                await store.get("key")


async def test_a_user_may_what_the_policy_says(minio, s3_bucket, canary):
    user = add_user(minio, policy="readonly")
    canary.watch(user.secret_access_key)
    async with open_store(s3_bucket.url, **user.storage_options()) as store:
        with pytest.raises(AccessDenied):
            await store.put("key", b"data")
    remove_user(minio, user.access_key_id)


def test_what_the_server_refuses_is_said(minio):
    with pytest.raises(StoreError, match="rejected remove-user"):
        remove_user(minio, "nobody-knows-me")
    with pytest.raises(StoreError, match="rejected add-user"):
        add_user(add_user(minio, policy="readonly"))  # who is no administrator makes no users
