from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.doctor.forecast import Limit, forecast

rates = st.none() | st.floats(0, 1e12)


def test_the_slowest_decides() -> None:
    expected = forecast(sample_bytes=100_000, store_bytes_s=50e6, drive_bytes_s=300e6, decode_images_s=1_000)
    assert expected.cold == Limit(500.0, "store")
    assert expected.warm == Limit(1_000.0, "decoder")


def test_what_was_not_measured_is_not_foretold() -> None:
    expected = forecast(sample_bytes=1, store_bytes_s=None, drive_bytes_s=None, decode_images_s=10)
    assert (expected.cold, expected.warm) == (None, None)


@given(st.integers(1, 1 << 40), rates, rates, rates)
def test_warm_is_never_slower_than_cold(
    sample_bytes: int, store: float | None, drive: float | None, decode: float | None
) -> None:
    expected = forecast(sample_bytes=sample_bytes, store_bytes_s=store, drive_bytes_s=drive, decode_images_s=decode)
    if expected.cold is not None and expected.warm is not None:
        assert expected.warm.images_s >= expected.cold.images_s
    assert expected.as_json()["sample_bytes"] == sample_bytes
