from __future__ import annotations

import pytest

from storage.stores.options import S3Options


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
