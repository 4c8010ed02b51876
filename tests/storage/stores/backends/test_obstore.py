from __future__ import annotations

import os
import warnings
from datetime import UTC, datetime

import pytest

from concurrent_loader.storage.errors import ConfigurationError, StoreClosed
from concurrent_loader.storage.stores.backends import obstore
from concurrent_loader.storage.stores.backends.obstore import ObstoreStore
from concurrent_loader.storage.stores.options import AzureOptions, GoogleOptions, S3Options


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
    store = ObstoreStore(url, options)
    assert store.url == url
    assert store._client() is store._client()


def test_options_of_another_cloud_are_refused():
    with pytest.raises(ConfigurationError):
        ObstoreStore("gs://bucket", S3Options())
    with pytest.raises(ConfigurationError):
        ObstoreStore("ftp://bucket")


@pytest.mark.parametrize(
    ("prefix", "before"),
    [("", None), ("img1", "img0~"), ("img0", None), ("a", None), ("b", "a~"), ("x/", None), ("é", None)],
)
def test_listing_begins_shortly_before_the_prefix(prefix, before):
    assert obstore._shortly_before(prefix) == before
    assert before is None or before < prefix


def test_a_new_store_in_a_forked_child_is_refused():
    ObstoreStore("gs://bucket", GoogleOptions(bearer_token="t"))._client()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        os._exit(_outcome_in_child())
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _outcome_in_child():
    refused = ObstoreStore("gs://bucket", GoogleOptions(bearer_token="t")).get("key")
    try:
        refused.send(None)
    except StoreClosed as error:
        return 0 if "client='fsspec'" in str(error) else 1
    except BaseException:  # noqa: BLE001
        return 2
    return 3


def test_an_etag_is_quoted_in_a_listing_as_in_a_header() -> None:
    """Azure lists it without quotes, and the bytes of an object are asked for under the listed one."""
    listed = {"last_modified": datetime(2026, 1, 1, tzinfo=UTC), "size": 3}
    for etag in ("0x8DC", '"0x8DC"'):
        assert obstore._meta("k", {**listed, "e_tag": etag}).etag == '"0x8DC"'
    assert obstore._meta("k", {**listed, "e_tag": 'W/"x"'}).etag == 'W/"x"'
    assert obstore._meta("k", {**listed, "e_tag": None}).etag is None
