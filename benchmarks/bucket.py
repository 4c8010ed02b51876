"""A bucket for one demo or benchmark: a local S3 server, and in front of it the latency of a real one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from concurrent_loader.storage.testing import LocalS3, ToolUnavailable, local_s3, measure_latency, toxiproxy

_LOG = logging.getLogger(__name__)
_NAME = "demo"
_NUM_PROBES = 31
_JITTER_PART = 3  # latency is uniform in median ± a third of it
_BANDWIDTH_MB_S = 90  # of one connection to S3, as AWS's guide says


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where a bucket is reached, directly and as if it were far away."""

    name: str  # the bucket's
    direct: Mapping[str, str] = field(repr=False)  # has the secret key
    # options that lead through the latency; the same as ``direct`` where none is applied
    remote: Mapping[str, str] = field(repr=False)
    server: str  # what the server is
    latency: str  # what was applied and what was measured, in words
    # measured by way of ``remote``: median to the first byte of a small request over a warm connection
    latency_ms: float
    latency_applied: bool  # whether there is a proxy in between
    processes: tuple[psutil.Process, ...]  # the server's and the proxy's

    def server_cpu_s(self) -> float:
        """Processor seconds of server and proxy so far; 0 for a server that is not ours."""
        times = [process.cpu_times() for process in self.processes]
        return sum(one.user + one.system for one in times)


@contextlib.contextmanager
def open_bucket(data_dir: Path, *, latency_ms: int) -> Iterator[Bucket]:
    """Starts a server with a bucket; all of it stops with the block."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(local_s3(data_dir=data_dir))
        server.make_bucket(_NAME)
        far, applied = server, f"no latency applied (--latency {latency_ms})"
        if latency_ms:
            try:
                proxy = stack.enter_context(
                    toxiproxy(
                        server,
                        latency_ms=latency_ms,
                        jitter_ms=latency_ms // _JITTER_PART,
                        bandwidth_mb_s=_BANDWIDTH_MB_S,
                    )
                )
            except ToolUnavailable as error:
                _LOG.warning("toxiproxy is not available: %s", error)
                applied = "no latency applied (toxiproxy is not available)"
            else:
                far = server.through(proxy)
                applied = (
                    f"{latency_ms} ± {latency_ms // _JITTER_PART} ms and {_BANDWIDTH_MB_S} MB/s a connection "
                    "by toxiproxy"
                )
        measured_ms = measure_latency(far.endpoint_url, num_requests=_NUM_PROBES)
        yield Bucket(
            name=_NAME,
            direct=server.storage_options(),
            remote=far.storage_options(),
            server=_describe(server),
            latency=f"{applied}; measured: {measured_ms:.1f} ms to the first byte (median of {_NUM_PROBES})",
            latency_ms=round(measured_ms, 2),
            latency_applied=far is not server,
            processes=tuple(psutil.Process().children(recursive=True)),
        )


def _describe(server: LocalS3) -> str:
    names = {"minio": "MinIO", "moto": "moto (slow: figures mean nothing)", "external": "a server that the user named"}
    return names[server.kind]
