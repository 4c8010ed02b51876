from __future__ import annotations

import pytest

from concurrent_loader.storage.checked_url import endpoint_error, remote_meant, secret_in_url, text_error

SECRET = "wJalrXUtn/EMI+K7MDENG"


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:{}@bucket/x",
        "s3a://x:{}@bucket",
        "gs://user:{}@bucket",
        "az://account:{}@container/x",
        "https://x:{}@host/x",
        "ftp://user:{}@host/x",
        "sftp://user:{}@host:22/x",
        "simplecache::ftp://user:{}@host/x",
        "zip://a.zip::s3://key:{}@bucket/b.zip",
        "s3:/key:{}@bucket/x",
        "s3://bucket/key?X-Amz-Signature={}",
        "s3://bucket/key?a=b&X-Amz-Security-Token={}",
        "gs://bucket/key?X-Goog-Signature={}",
        "https://account.blob.core.windows.net/c?sv=2024&sig={}",
        "https://host/x?access_token={}&b=c",
    ],
)
@pytest.mark.parametrize("secret", ["0123456789abcdef", SECRET, "pw1x@zzq9@kkk7", SECRET.replace("/", "%2F")])
def test_secrets_in_a_url_are_found_and_not_shown(url, secret):
    error = secret_in_url(url.format(secret))
    assert error is not None
    assert secret not in str(error)
    assert not any(part in str(error) for part in secret.replace("@", "/").split("/"))
    assert "storage options" in str(error)


@pytest.mark.parametrize("url", ["s3://token@bucket/x", "https://token@host/x", "gs://token@bucket"])
def test_a_name_without_a_password_may_be_a_token(url):
    assert "token@" not in str(secret_in_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/user@host",
        "s3://bucket/a?b#c=d",
        "s3://bucket",
        "http://host:9000/a@b",
        "https://[::1]:9000/x",
        "abfs://container@account.dfs.core.windows.net/x",
        "github://owner:repository@main/x",
        "ftp://user@host/x",
        "hf://datasets/owner/name@revision/x",
        "simplecache::https://host/x",
        "/folder/a://b:c@d",
        "folder/a@b",
        "memory://name/x",
    ],
)
def test_other_urls_pass(url):
    assert secret_in_url(url) is None


@pytest.mark.parametrize(
    ("endpoint_url", "said"),
    [
        (f"http://user:{SECRET}@host:9000", "must not hold credentials"),
        ("https://token@host", "must not hold credentials"),
        (f"user:{SECRET}@host:9000", "must begin with http"),
        (f"http://host?X-Amz-Signature={SECRET}", "must not hold credentials"),
        ("localhost:9000", "must begin with http"),
        ("http://", "must name a host"),
        ("http://:80", "must name a host"),
        ("http://host:", "must name a host"),
        ("http://host:0", "must name a host"),
        ("http://host:99999", "must be a valid address"),
        ("http://[::1", "must be a valid address"),
        ("http://host\n", "control characters"),
        ("http://a b", "spaces"),
        ("http://é", "ASCII"),
        ("http://host/?a=b", "must not have a query"),
    ],
)
def test_endpoints_that_cannot_be(endpoint_url, said):
    error = endpoint_error(endpoint_url, name="endpoint_url")
    assert error is not None
    assert said in str(error)
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    "endpoint_url", ["http://127.0.0.1:9000", "https://host/path/", "http://[::1]:9", "http://a_b"]
)
def test_endpoints_that_can_be(endpoint_url):
    assert endpoint_error(endpoint_url, name="endpoint_url") is None


@pytest.mark.parametrize("value", ["token\n", " token", "to\x00ken", "tokén", "to\tken"])
def test_text_that_no_request_can_carry(value):
    error = text_error(value, name="session_token")
    assert error is not None
    assert value not in str(error)
    assert text_error("to+ken/==", name="session_token") is None


@pytest.mark.parametrize(
    ("path", "writing", "reading"),
    [
        ("s3:/bucket/x", "s3://bucket/x", "s3://bucket/x"),
        ("s3:bucket", "s3://bucket", "s3://bucket"),
        ("S3//bucket/x", "s3://bucket/x", "s3://bucket/x"),
        ("gs:/bucket", "gs://bucket", "gs://bucket"),
        ("bucket/photos", "s3://bucket/photos", "s3://bucket/photos"),
        ("bucket", None, "s3://bucket"),
        ("./bucket/photos", None, None),
        ("/bucket/photos", None, None),
        ("~/bucket", None, None),
        ("here/new", None, None),
        ("here", None, None),
        ("s3:/here/too", None, None),
        ("s3://bucket", None, None),
    ],
)
def test_a_forgotten_scheme_is_guessed_where_no_such_path_exists(path, writing, reading, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "s3:" / "here" / "too").mkdir(parents=True)
    assert remote_meant(path) == writing
    assert remote_meant(path, reading=True) == reading
