"""All checks in their order: from the endpoint to the decoder, each under its deadline, none stopping the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concurrent_loader.doctor import decoding, endpoint, machine
from concurrent_loader.doctor.finding import Finding, Level
from concurrent_loader.doctor.forecast import Forecast, forecast
from concurrent_loader.doctor.identity import find_credentials
from concurrent_loader.doctor.permissions import try_permissions
from concurrent_loader.doctor.transfer import measure_round_trip, measure_throughput
from storage.hidden_arguments import hides_secrets
from storage.stores.opening import open_store

__all__ = ["Examination", "Wishes", "examine"]

_DECODING_S = 0.5
_S3 = ("s3", "s3a")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is to be examined, and how far.

    Attributes:
        put: Whether writing is wanted, too.
        cache_dir: The cache's folder; None for no cache.
        cache_bytes: Its budget, if that is known.
        sample_bytes: Encoded size of a sample, for the forecast.
        probe_bytes: How much to fetch and to write at most; 0 for neither.
        deadline_s: For each request, and for each measurement.
    """

    put: bool = False
    cache_dir: Path | None = None
    cache_bytes: int | None = None
    sample_bytes: int = 110_000
    probe_bytes: int = 64 << 20
    deadline_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Examination:
    """What came of it."""

    findings: tuple[Finding, ...]
    forecast: Forecast


@hides_secrets
async def examine(
    url: str,
    options: Mapping[str, Any],
    wishes: Wishes,
    *,
    client: str = "auto",
    on_finding: Callable[[Finding], None] = lambda _: None,
) -> Examination:
    """Examines a bucket and this machine.

    Args:
        url: Of a data set, or of where one is to be.
        options: Of its store.
        wishes: What and how far.
        client: As for `storage.open_store`.
        on_finding: Told of each finding as soon as there is one.

    Raises:
        ConfigurationError: A URL or option that cannot work; nothing was sent.

    Cancellation: At any await; all connections are closed.
    """
    findings: list[Finding] = []

    def found(*new: Finding) -> None:
        findings.extend(new)
        for finding in new:
            on_finding(finding)

    store_bytes_s = await _look_at_store(url, options, wishes, client, found)
    drive_bytes_s = None
    if wishes.cache_dir is not None:
        finding, drive_bytes_s = await asyncio.to_thread(_look_at_drive, wishes.cache_dir, wishes)
        found(finding)
    found(machine.judge_descriptors(machine.open_files_limit()))
    found(machine.judge_start_method(machine.start_method()))
    finding, decode_images_s = await asyncio.to_thread(_look_at_decoder, wishes.sample_bytes)
    found(decoding.judge_gpus(decoding.find_gpus(), has_device=decoding.has_nvidia_device()), finding)
    return Examination(
        tuple(findings),
        forecast(
            sample_bytes=wishes.sample_bytes,
            store_bytes_s=store_bytes_s,
            drive_bytes_s=drive_bytes_s,
            decode_images_s=decode_images_s,
        ),
    )


async def _look_at_store(
    url: str, options: Mapping[str, Any], wishes: Wishes, client: str, found: Callable[..., None]
) -> float | None:
    """All that concerns the store; returns the bytes a second that it brought, if that could be measured."""
    async with open_store(url, client=client, **options) as store:
        # fsspec has options of its own, and says nothing of an endpoint.
        is_s3 = url.partition("://")[0].lower() in _S3 and client != "fsspec"
        if is_s3 and not await _look_at_s3(url, options, wishes, found):
            return None
        permissions = await try_permissions(store, put=wishes.put, deadline_s=wishes.deadline_s)
        found(*permissions.findings)
        objects = [meta for meta in permissions.objects if meta.size > 0]
        if not any(finding.name == "get" and finding.level is Level.OK for finding in permissions.findings):
            return None
        found(await measure_round_trip(store, objects[0], deadline_s=wishes.deadline_s))
        if not wishes.probe_bytes:
            return None
        finding, throughput = await measure_throughput(
            store, objects, num_bytes=wishes.probe_bytes, deadline_s=wishes.deadline_s
        )
        found(finding)
        return None if throughput is None else throughput.bytes_s


async def _look_at_s3(url: str, options: Mapping[str, Any], wishes: Wishes, found: Callable[..., None]) -> bool:
    """Endpoint, TLS, path style, region, clock and credentials; whether anybody is there to be asked for more."""
    from storage.stores.aws_settings import AwsSettings
    from storage.stores.location import Location
    from storage.stores.options import S3Options, parse_options

    parsed = parse_options(S3Options, options, url=url)
    settings = AwsSettings.resolve(parsed, url=url)
    if parsed.verify_tls:
        settings.certificates(url=url)  # complains now if they cannot be read
    place = endpoint.Place(
        Location.parse(url).bucket,
        endpoint_url=settings.endpoint_url,
        region=settings.region,
        path_style=parsed.path_style,
        verify_tls=parsed.verify_tls,
        ca_bundle=settings.ca_bundle,
    )
    answer = await endpoint.ask(place, deadline_s=wishes.deadline_s)
    found(
        endpoint.judge_endpoint(place, answer),
        endpoint.judge_tls(place, answer),
        endpoint.judge_path_style(place),
        endpoint.judge_region(place, answer),
        endpoint.judge_clock(answer),
        await find_credentials(parsed, url=url, deadline_s=wishes.deadline_s),
    )
    return isinstance(answer, endpoint.Answer)


def _look_at_drive(cache_dir: Path, wishes: Wishes) -> tuple[Finding, float | None]:
    try:
        drive = machine.find_drive(cache_dir)
    except OSError as error:
        said = f"{cache_dir} cannot be looked at: {error.strerror}"
        return Finding("cache disk", Level.FAIL, said, "give the training user a folder of its own"), None
    num_bytes = min(wishes.probe_bytes, drive.free_bytes // 2)
    try:
        write_bytes_s = machine.measure_writing(drive.folder, num_bytes=num_bytes)
    except OSError:
        write_bytes_s = None
    finding = machine.judge_drive(drive, write_bytes_s=write_bytes_s, wanted_bytes=wishes.cache_bytes)
    # One block says nothing of the drive's pace.
    return finding, write_bytes_s if wishes.probe_bytes else None


def _look_at_decoder(sample_bytes: int) -> tuple[Finding, float | None]:
    from concurrent_loader.decode import available_backends, has_native_crop

    backends, images_s, cores = available_backends("jpeg"), None, machine.num_cores()
    if backends:
        jpeg = decoding.sample_jpeg(num_bytes=sample_bytes)
        images_s = decoding.measure_decoding(jpeg, backend=backends[0], seconds=_DECODING_S)
    finding = decoding.judge_decoder(backends, native_crop=has_native_crop(), images_s=images_s, num_cores=cores)
    return finding, None if images_s is None else images_s * cores
