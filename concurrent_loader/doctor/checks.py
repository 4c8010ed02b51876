"""Runs all checks in order, from the endpoint to the decoder. Each has a deadline.

A check that fails does not stop the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concurrent_loader.doctor import decoding, endpoint, machine
from concurrent_loader.doctor.finding import Finding, Level
from concurrent_loader.doctor.forecast import Forecast, forecast
from concurrent_loader.doctor.identity import check_credentials
from concurrent_loader.doctor.permissions import check_permissions
from concurrent_loader.doctor.transfer import measure_round_trip, measure_throughput
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.stores.backends.open_store import open_store

__all__ = ["CheckOptions", "Report", "run_checks"]

_DECODING_S = 0.5
_S3 = ("s3", "s3a")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Configures the checks.

    Attributes:
        put: Whether to check writing. Default False.
        cache_dir: Folder of the cache; None (default) for no cache.
        cache_bytes: Budget of the cache in bytes; None (default) if unknown.
        sample_bytes: Encoded size of a sample in bytes, for the forecast. Default 110,000.
        probe_bytes: Maximum number of bytes to fetch and to write; 0 skips both measurements. Default 64 MiB.
        deadline_s: Deadline for each request and each measurement, in seconds. Default 10.
    """

    put: bool = False
    cache_dir: Path | None = None
    cache_bytes: int | None = None
    sample_bytes: int = 110_000
    probe_bytes: int = 64 << 20
    deadline_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """Stores the results of all checks.

    Attributes:
        findings: Results in the order of the checks.
        forecast: Expected images per second.
    """

    findings: tuple[Finding, ...]
    forecast: Forecast


@hides_secrets
async def run_checks(
    url: str,
    options: Mapping[str, Any],
    check_options: CheckOptions,
    *,
    client: str = "auto",
    on_finding: Callable[[Finding], None] = lambda _: None,
) -> Report:
    """Checks a bucket and this machine.

    Args:
        url: URL of a dataset, or of the place for a new one.
        options: Options of its store.
        check_options: Checks to run, and their limits.
        client: Client library, as for `concurrent_loader.storage.open_store`.
        on_finding: Callback for each finding, called as soon as its check is done.

    Raises:
        ConfigurationError: The URL or an option is invalid. Nothing was sent in this case.

    Cancellation: At any await; all connections are closed.
    """
    findings: list[Finding] = []

    def found(*new: Finding) -> None:
        findings.extend(new)
        for finding in new:
            on_finding(finding)

    store_bytes_s = await _check_store(url, options, check_options, client, found)
    drive_bytes_s = None
    if check_options.cache_dir is not None:
        finding, drive_bytes_s = await asyncio.to_thread(_check_drive, check_options.cache_dir, check_options)
        found(finding)
    found(machine.check_descriptors(machine.open_files_limit()))
    found(machine.check_start_method(machine.start_method()))
    finding, decode_images_s = await asyncio.to_thread(_check_decoder, check_options.sample_bytes)
    found(decoding.check_gpus(decoding.find_gpus(), has_device=decoding.has_nvidia_device()), finding)
    return Report(
        tuple(findings),
        forecast(
            sample_bytes=check_options.sample_bytes,
            store_bytes_s=store_bytes_s,
            drive_bytes_s=drive_bytes_s,
            decode_images_s=decode_images_s,
        ),
    )


async def _check_store(
    url: str, options: Mapping[str, Any], check_options: CheckOptions, client: str, found: Callable[..., None]
) -> float | None:
    """Checks the store; returns its throughput in bytes per second, or None if it was not measured."""
    async with open_store(url, client=client, **options) as store:
        # fsspec has its own options and does not expose an endpoint.
        is_s3 = url.partition("://")[0].lower() in _S3 and client != "fsspec"
        if is_s3 and not await _check_s3(url, options, check_options, found):
            return None
        permissions = await check_permissions(store, put=check_options.put, deadline_s=check_options.deadline_s)
        found(*permissions.findings)
        objects = [meta for meta in permissions.objects if meta.size > 0]
        if not any(finding.name == "get" and finding.level is Level.OK for finding in permissions.findings):
            return None
        found(await measure_round_trip(store, objects[0], deadline_s=check_options.deadline_s))
        if not check_options.probe_bytes:
            return None
        finding, throughput = await measure_throughput(
            store, objects, num_bytes=check_options.probe_bytes, deadline_s=check_options.deadline_s
        )
        found(finding)
        return None if throughput is None else throughput.bytes_s


async def _check_s3(
    url: str, options: Mapping[str, Any], check_options: CheckOptions, found: Callable[..., None]
) -> bool:
    """Checks endpoint, TLS, path style, region, clock and credentials; returns whether the server answered."""
    from concurrent_loader.storage.stores.aws.settings import AwsSettings
    from concurrent_loader.storage.stores.location import Location
    from concurrent_loader.storage.stores.options import S3Options, parse_options

    parsed = parse_options(S3Options, options, url=url)
    settings = AwsSettings.resolve(parsed, url=url)
    if parsed.verify_tls:
        settings.check_ca_bundle(url=url)  # raises now if the file cannot be read
    place = endpoint.BucketAddress(
        Location.parse(url).bucket,
        endpoint_url=settings.endpoint_url,
        region=settings.region,
        path_style=parsed.path_style,
        verify_tls=parsed.verify_tls,
        ca_bundle=settings.ca_bundle,
    )
    answer = await endpoint.probe_endpoint(place, deadline_s=check_options.deadline_s)
    found(
        endpoint.check_endpoint(place, answer),
        endpoint.check_tls(place, answer),
        endpoint.check_path_style(place),
        endpoint.check_region(place, answer),
        endpoint.check_clock(answer),
        await check_credentials(parsed, url=url, deadline_s=check_options.deadline_s),
    )
    return isinstance(answer, endpoint.EndpointResponse)


def _check_drive(cache_dir: Path, check_options: CheckOptions) -> tuple[Finding, float | None]:
    try:
        drive = machine.find_drive(cache_dir)
    except OSError as error:
        message = f"{cache_dir} cannot be read: {error.strerror}"
        return Finding("cache disk", Level.FAIL, message, "use a folder that the training user owns"), None
    num_bytes = min(check_options.probe_bytes, drive.free_bytes // 2)
    try:
        write_bytes_s = machine.measure_writing(drive.folder, num_bytes=num_bytes)
    except OSError:
        write_bytes_s = None
    finding = machine.check_drive(drive, write_bytes_s=write_bytes_s, wanted_bytes=check_options.cache_bytes)
    # One block is too little to measure the drive.
    return finding, write_bytes_s if check_options.probe_bytes else None


def _check_decoder(sample_bytes: int) -> tuple[Finding, float | None]:
    from concurrent_loader.decode import available_backends, has_native_crop

    backends, images_s, cores = available_backends("jpeg"), None, machine.num_cores()
    if backends:
        jpeg = decoding.sample_jpeg(num_bytes=sample_bytes)
        images_s = decoding.measure_decoding(jpeg, backend=backends[0], seconds=_DECODING_S)
    finding = decoding.check_decoder(backends, native_crop=has_native_crop(), images_s=images_s, num_cores=cores)
    return finding, None if images_s is None else images_s * cores
