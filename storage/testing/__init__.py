"""Tools for tests of storage code: a local S3 server, proxies with latency and faults, stores that fail on demand.

The conformance suite for your own stores is `concurrent_loader.storage.testing.conformance.store_tests.StoreTests`; it
needs pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "DetachedS3": "servers.background",
    "HttpFaults": "faults.http_proxy",
    "HttpFaultsProcess": "faults.http_proxy_process",
    "LocalS3": "servers.local_s3",
    "MortalS3": "servers.restartable_s3",
    "ServerFailed": "servers.errors",
    "ToolUnavailable": "servers.errors",
    "Toxiproxy": "faults.toxiproxy",
    "http_faults": "faults.http_proxy",
    "http_faults_process": "faults.http_proxy_process",
    "local_s3": "servers.local_s3",
    "measure_latency": "servers.s3_requests",
    "mortal_s3": "servers.restartable_s3",
    "no_leaks": "checks.leaks",
    "running_s3": "servers.background",
    "start_s3": "servers.background",
    "stop_s3": "servers.background",
    "toxiproxy": "faults.toxiproxy",
}


def __getattr__(name: str) -> Any:
    """Imports a name on first use: the programs can be built before any package is installed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
