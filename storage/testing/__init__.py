"""What users test with, too: a local S3 server, the network in front of it, stores that fail on demand.

The conformance suite for stores of your own is `storage.testing.store_tests.StoreTests`; importing it needs pytest.
"""

from __future__ import annotations

from storage.testing.detached import DetachedS3, running_s3, start_s3, stop_s3
from storage.testing.failures import ServerFailed, ToolUnavailable
from storage.testing.http_faults import HttpFaults, http_faults
from storage.testing.http_faults_process import HttpFaultsProcess, http_faults_process
from storage.testing.leaks import no_leaks
from storage.testing.local_s3 import LocalS3, local_s3
from storage.testing.mortal_s3 import MortalS3, mortal_s3
from storage.testing.s3_requests import measure_latency
from storage.testing.toxiproxy import Toxiproxy, toxiproxy

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
