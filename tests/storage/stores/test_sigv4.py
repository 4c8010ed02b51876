from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from storage.stores.credentials import S3Credentials
from storage.stores.sigv4 import signed_headers

NOW = datetime(2026, 11, 23, 18, 1, 2, tzinfo=UTC)
SENDABLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def by_botocore(keys, *, url, region):
    """The oracle: what botocore sends for the same request."""
    request = AWSRequest(method="GET", url=url, data=b"")
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
    ours = signed_headers(keys, host=host, path=path, query=query, region=region, now=NOW)
    theirs = by_botocore(
        Credentials(access_key_id, secret_access_key, session_token), url=f"https://{host}{path}?{query}", region=region
    )
    assert {name: value for name, value in ours.items() if name != "host"} == {
        name: theirs[name] for name in ours if name != "host"
    }
