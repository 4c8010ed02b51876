from __future__ import annotations

import pytest

from concurrent_loader.storage.stores.location import Location


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket/a/b/", "bucket", "a/b"),
        ("s3://bucket/a%20b?c#d", "bucket", "a%20b?c#d"),
        ("s3://bucket/ü 1", "bucket", "ü 1"),
        ("s3://bucket/user@host", "bucket", "user@host"),
    ],
)
def test_urls_are_read_literally(url, bucket, prefix):
    location = Location.parse(url)
    assert (location.bucket, location.prefix) == (bucket, prefix)
    assert location.url == url.rstrip("/")


@pytest.mark.parametrize("prefix", ["", "a", "a/b"])
@pytest.mark.parametrize("key", ["k", "a", "a/k", "a/b/k"])
def test_keys_come_back(prefix, key):
    location = Location("s3", "bucket", prefix)
    assert location.relative_key(location.full_key(key)) == key
    assert location.full_key(key).startswith(location.full_key(""))
