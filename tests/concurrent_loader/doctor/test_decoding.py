from __future__ import annotations

import pytest

from concurrent_loader.decode import available_backends, parse_header
from concurrent_loader.doctor.decoding import (
    Gpu,
    check_decoder,
    check_gpus,
    find_gpus,
    has_nvidia_device,
    measure_decoding,
    sample_jpeg,
)
from concurrent_loader.doctor.finding import Level


@pytest.mark.slow
@pytest.mark.parametrize("num_bytes", [10_000, 110_000, 1_000_000])
def test_a_sample_has_about_the_size(num_bytes: int) -> None:
    jpeg = sample_jpeg(num_bytes=num_bytes)
    assert parse_header(jpeg).format == "jpeg"
    assert num_bytes / 2 < len(jpeg) < num_bytes * 2


def test_decoding_is_timed() -> None:
    ticks = iter(range(100))
    rate = measure_decoding(
        sample_jpeg(num_bytes=5_000), backend=available_backends()[0], seconds=3, clock=lambda: float(next(ticks))
    )
    assert rate == pytest.approx(3 / 4)  # pictures after 1, 2 and 3 s; the clock is read once more


def test_gpus() -> None:
    a100 = Gpu("A100", 80 << 30)
    assert check_gpus((a100,), has_device=True).facts == {"num_gpus": 1, "names": ["A100"]}
    assert check_gpus((), has_device=False).level is Level.OK
    assert check_gpus((), has_device=True).level is Level.WARN
    assert check_gpus(find_gpus(), has_device=has_nvidia_device()).name == "gpu"


@pytest.mark.parametrize(
    ("backends", "native_crop", "level"),
    [
        (("torchcodec", "pillow"), True, Level.OK),
        (("torchcodec",), False, Level.WARN),
        (("pillow",), True, Level.WARN),
        ((), False, Level.FAIL),
    ],
)
def test_decoders(backends: tuple[str, ...], native_crop: bool, level: Level) -> None:
    finding = check_decoder(backends, native_crop=native_crop, images_s=900.4, num_cores=2)
    assert finding.level is level
    assert finding.facts["images_s_per_core"] == 900.4


def test_the_names_are_the_registrys() -> None:
    """What is judged and measured is what the loader takes for a JPEG, and only Pillow alone is slow."""
    for name in available_backends("jpeg"):
        finding = check_decoder((name,), native_crop=True, images_s=None, num_cores=1)
        assert (finding.level is Level.WARN) is (name == "pillow")
