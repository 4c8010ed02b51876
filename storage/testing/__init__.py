"""Tools for tests of storage code: a local S3 server, proxies with latency and faults, stores that fail on demand.

The conformance suite for your own stores is `concurrent_loader.storage.testing.conformance.store_tests.StoreTests`; it
needs pytest.
"""

from __future__ import annotations

from concurrent_loader.storage.testing.checks.leaks import no_leaks
from concurrent_loader.storage.testing.faults.http_proxy import HttpFaults, http_faults
from concurrent_loader.storage.testing.faults.http_proxy_process import HttpFaultsProcess, http_faults_process
from concurrent_loader.storage.testing.faults.toxiproxy import Toxiproxy, toxiproxy
from concurrent_loader.storage.testing.servers.background import DetachedS3, running_s3, start_s3, stop_s3
from concurrent_loader.storage.testing.servers.errors import ServerFailed, ToolUnavailable
from concurrent_loader.storage.testing.servers.local_s3 import LocalS3, local_s3
from concurrent_loader.storage.testing.servers.restartable_s3 import MortalS3, mortal_s3
from concurrent_loader.storage.testing.servers.s3_requests import measure_latency

__all__ = [
    "DetachedS3",
    "HttpFaults",
    "HttpFaultsProcess",
    "LocalS3",
    "MortalS3",
    "ServerFailed",
    "ToolUnavailable",
    "Toxiproxy",
    "http_faults",
    "http_faults_process",
    "local_s3",
    "measure_latency",
    "mortal_s3",
    "no_leaks",
    "running_s3",
    "start_s3",
    "stop_s3",
    "toxiproxy",
]
