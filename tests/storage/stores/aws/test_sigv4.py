from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from urllib.parse import quote

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.stores.aws.credentials import S3Credentials
from concurrent_loader.storage.stores.aws.sigv4 import Signer

NOW = datetime(2026, 11, 23, 18, 1, 2, tzinfo=UTC)
SENDABLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def by_botocore(keys, *, url, region, method="GET", headers=None, body=b""):
    """The oracle: what botocore sends for the same request."""
    request = AWSRequest(method=method, url=url, headers=headers, data=body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda: NOW.replace(tzinfo=None))
        S3SigV4Auth(keys, "s3", region).add_auth(request)
    return {name.lower(): value for name, value in request.prepare().headers.items()}


@given(
    access_key_id=SENDABLE,
    secret_access_key=SENDABLE,
    session_token=st.none() | SENDABLE,
    region=st.sampled_from(["us-east-1", "eu-west-1", "auto", "cn-north-1"]),
    host=st.sampled_from(["127.0.0.1:9000", "bucket.s3.eu-west-1.amazonaws.com", "[::1]:81", "minio"]),
    path=st.sampled_from(["/", "/bucket", "/base/my.bucket_1-x"]),
    prefix=TEXT,
    token=TEXT,
)
def test_signatures_are_botocores(access_key_id, secret_access_key, session_token, region, host, path, prefix, token):
    values = {"continuation-token": token, "encoding-type": "url", "list-type": "2", "max-keys": "7", "prefix": prefix}
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in values.items())
    keys = S3Credentials(access_key_id, secret_access_key, session_token)
    ours = Signer(region).headers(keys, method="GET", host=host, path=path, query=query, now_s=NOW.timestamp())
    theirs = by_botocore(
        Credentials(access_key_id, secret_access_key, session_token), url=f"https://{host}{path}?{query}", region=region
    )
    assert {name: value for name, value in ours.items() if name != "host"} == {
        name: theirs[name] for name in ours if name != "host"
    }


@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE"]),
    key=TEXT.filter(bool),
    query=st.sampled_from(["", "uploads=", "partNumber=7&uploadId=a%2Fb"]),
    headers=st.dictionaries(st.sampled_from(["range", "if-match", "if-none-match"]), st.just('"x"')),
    body=st.binary(max_size=50),
)
def test_all_verbs_are_signed_as_botocore_does(method, key, query, headers, body):
    path = f"/bucket/{quote(key, safe='/')}"
    ours = Signer("eu-west-1").headers(
        S3Credentials("id", "secret", "token"),
        method=method,
        host="minio",
        path=path,
        query=query,
        now_s=NOW.timestamp(),
        more=headers,
        digest=hashlib.sha256(body).hexdigest(),
    )
    url = f"http://minio{path}?{query}" if query else f"http://minio{path}"
    theirs = by_botocore(
        Credentials("id", "secret", "token"), url=url, region="eu-west-1", method=method, headers=headers, body=body
    )
    assert ours["authorization"] == theirs["authorization"]


def test_the_key_of_a_day_is_derived_once_and_anew_for_other_keys_and_days():
    signer = Signer("eu-west-1")

    def signed(keys, now_s):
        return signer.headers(keys, method="GET", host="h", path="/", query="", now_s=now_s)["authorization"]

    one, other, now_s = S3Credentials("id", "secret"), S3Credentials("id", "another"), NOW.timestamp()
    for keys, time_s in [(one, now_s), (other, now_s), (one, now_s), (one, now_s + 86400), (one, now_s)]:
        fresh = Signer("eu-west-1").headers(keys, method="GET", host="h", path="/", query="", now_s=time_s)
        assert signed(keys, time_s) == fresh["authorization"]
    assert "secret" not in repr(signer)
