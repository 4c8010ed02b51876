from __future__ import annotations

import json
from typing import Any

import pytest

from concurrent_loader.doctor.terraform_outputs import read_outputs
from concurrent_loader.storage.errors import ConfigurationError

SECRET = "not-to-be-shown"
MINIO = {
    "dataset_url": "s3://training/photos",
    "storage_options": {"endpoint_url": "http://127.0.0.1:9000", "region": "us-east-1"},
    "reader_access_key_id": "reader",
    "reader_secret_access_key": SECRET,
    "writer_access_key_id": "writer",
    "writer_secret_access_key": SECRET + "-either",
    "reader_environment": "export …",
}
AWS = {
    "dataset_url": "s3://training",
    "storage_options": {"region": "eu-west-1"},
    "cache_dir": "/nvme/cache",
    "writer_role_arn": None,
}


def outputs(values: dict[str, Any]) -> str:
    return json.dumps({name: {"sensitive": False, "type": "string", "value": value} for name, value in values.items()})


def test_minio() -> None:
    target = read_outputs(outputs(MINIO))
    assert (target.url, target.cache_dir) == ("s3://training/photos", None)
    assert target.storage_options == {
        "endpoint_url": "http://127.0.0.1:9000",
        "region": "us-east-1",
        "access_key_id": "reader",
        "secret_access_key": SECRET,
    }
    assert SECRET not in repr(target)
    assert read_outputs(outputs(MINIO), identity="writer").storage_options["access_key_id"] == "writer"


def test_aws() -> None:
    target = read_outputs(outputs(AWS))
    assert target.storage_options == {"region": "eu-west-1"}
    assert target.cache_dir == "/nvme/cache"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"dataset_url": "not-to-be-shown"}',
        outputs({"other": SECRET}),
        outputs({**MINIO, "storage_options": {"secret_access_key": SECRET}}),
        outputs({**MINIO, "storage_options": SECRET}),
        outputs({**MINIO, "cache_dir": [SECRET]}),
    ],
)
def test_anything_else_is_refused_without_its_values(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_outputs(text)
    assert SECRET not in str(refused.value)
