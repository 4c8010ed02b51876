"""What the tests of the S3 stores share."""

from __future__ import annotations

import botocore.session
import pytest


@pytest.fixture(scope="session")
def s3_client(s3_server):
    """A plain botocore client: what others put into a bucket, and see in it."""
    options = s3_server.storage_options()
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=options["endpoint_url"],
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
        region_name=options["region"],
    )
    yield client
    client.close()
