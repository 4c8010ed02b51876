import socket

import pytest
from botocore.credentials import Credentials

from concurrent_loader.storage.errors import AccessDenied, ConfigurationError, ConnectionFailed
from concurrent_loader.storage.testing.servers.s3_requests import create_bucket, list_buckets, measure_latency, send
from concurrent_loader.storage.testing.servers.startup import free_port

pytestmark = pytest.mark.s3

REGION = "us-east-1"


def credentials(server):
    return Credentials(server.access_key_id, server.secret_access_key)


def test_the_servers_own_credentials_are_granted_and_others_are_not(s3_server):
    assert list_buckets(s3_server.endpoint_url, credentials(s3_server), region=REGION).status == 200
    if s3_server.kind == "minio":  # moto believes everybody
        answer = list_buckets(s3_server.endpoint_url, Credentials("somebody", "else-entirely"), region=REGION)
        assert (answer.status, answer.code) == (403, "InvalidAccessKeyId")


def test_a_bucket_is_created_once_and_again_is_no_error(s3_bucket, s3_server):
    create_bucket(s3_server.endpoint_url, s3_bucket.name, credentials(s3_server), region=REGION)
    assert s3_bucket.name.encode() in list_buckets(s3_server.endpoint_url, credentials(s3_server), region=REGION).body


@pytest.mark.parametrize("name", ["", "ab", "UPPER", "under_score", "-x-", "a/b", "a" * 64, "x\r\ny"])
def test_names_that_are_none_are_refused_before_anything_is_sent(name):
    with pytest.raises(ConfigurationError, match="bucket"):
        create_bucket("http://127.0.0.1:1", name, Credentials("a", "b"), region=REGION)


def test_credentials_that_may_not_are_access_denied(s3_server):
    if s3_server.kind != "minio":
        pytest.skip("moto believes everybody")
    with pytest.raises(AccessDenied, match="SignatureDoesNotMatch"):
        create_bucket(
            s3_server.endpoint_url, "mine", Credentials(s3_server.access_key_id, "wrong-secret"), region=REGION
        )


@pytest.mark.parametrize("ask", [lambda url: send("GET", url), measure_latency])
def test_nobody_there_is_a_failed_connection(ask):
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
        ask(f"http://127.0.0.1:{free_port()}")


def test_a_server_that_never_answers_meets_the_time_out(no_leaks):
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ConnectionFailed, match=r"imed ?out"):
        send("GET", f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)


@pytest.mark.parametrize("url", ["127.0.0.1:9000", "ftp://127.0.0.1", "http://", "s3://bucket"])
def test_an_endpoint_is_an_http_url(url):
    with pytest.raises(ConfigurationError, match="endpoint"):
        send("GET", url)


def test_a_proxy_in_the_environment_is_not_used(s3_server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert send("GET", s3_server.endpoint_url).status in (200, 403)


def test_latency_of_the_loopback_is_small(s3_server):
    assert 0 < measure_latency(s3_server.endpoint_url, num_requests=5) < 1000
