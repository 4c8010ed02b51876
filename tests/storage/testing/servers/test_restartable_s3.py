"""A server that is frozen, killed and started again."""

from __future__ import annotations

import pytest

from concurrent_loader.storage.errors import ConnectionFailed
from concurrent_loader.storage.testing import ServerFailed, ToolUnavailable, mortal_s3, no_leaks
from concurrent_loader.storage.testing.servers.s3_requests import list_buckets, send

pytestmark = pytest.mark.s3


@pytest.fixture
def mortal(s3_server):
    if s3_server.kind != "minio":
        pytest.skip("moto forgets its objects when it dies")
    with no_leaks(), mortal_s3() as mortal:
        yield mortal


def test_it_comes_back_where_it_was_with_what_it_had(mortal):
    server = mortal.server
    server.make_bucket("kept")
    mortal.kill()
    mortal.kill()
    with pytest.raises(ConnectionFailed):
        send("GET", server.endpoint_url)
    with pytest.raises(ServerFailed, match="not running"):
        mortal.freeze()
    mortal.restart()
    answer = list_buckets(server.endpoint_url, server._credentials(), region=server.region)
    assert b"<Name>kept</Name>" in answer.body
    mortal.restart()
    assert send("GET", server.endpoint_url).status == 403


def test_it_can_be_frozen(mortal):
    url = mortal.server.endpoint_url
    mortal.freeze()
    with pytest.raises(ConnectionFailed):
        send("GET", url, timeout_s=0.3)
    mortal.thaw()
    assert send("GET", url).status == 403
    mortal.freeze()  # ends in that state


def test_without_a_program_there_is_none():
    with pytest.raises(ToolUnavailable), mortal_s3(kinds=()):
        pass
