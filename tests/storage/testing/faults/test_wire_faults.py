"""Scripts of faults: what comes when, as pure functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.testing.faults.wire_faults import (
    INTERNAL_ERROR,
    SLOW_DOWN,
    Close,
    Delay,
    Flip,
    Rates,
    Request,
    Reset,
    ShiftRange,
    Silence,
    always,
    in_order,
    is_range,
    seeded,
    together,
    unharmed,
)

RANGE = Request(0, 0, "GET", "/bucket/key", range=(10, 110))
MANIFEST = Request(0, 0, "GET", "/bucket/key")
PUT = Request(0, 0, "PUT", "/bucket/key")


def test_scripts_speak_of_ranges_unless_told_otherwise():
    assert is_range(RANGE)
    assert not is_range(MANIFEST)
    assert not is_range(PUT)
    script = in_order([SLOW_DOWN, None, Reset()])
    assert [list(script(request)) for request in (RANGE, MANIFEST, RANGE, RANGE, RANGE)] == [
        [SLOW_DOWN],
        [],
        [],
        [Reset()],
        [],
    ]
    puts = always(SLOW_DOWN, when=lambda request: request.method == "PUT")
    assert list(puts(PUT)) == [SLOW_DOWN]
    assert list(puts(RANGE)) == []
    assert unharmed(RANGE) == ()
    assert together(always(Delay(1)), puts, always(Flip()))(RANGE) == [Delay(1), Flip()]


KINDS = {
    "slow_down": lambda fault: fault == SLOW_DOWN,
    "error": lambda fault: fault == INTERNAL_ERROR,
    "reset": lambda fault: fault == Reset(),
    "reset_body": lambda fault: isinstance(fault, Reset) and 0 <= fault.after_bytes < 100,
    "close_body": lambda fault: isinstance(fault, Close) and 0 <= fault.after_bytes < 100,
    "silence": lambda fault: fault == Silence(),
    "stall": lambda fault: isinstance(fault, Silence) and 0 <= fault.after_bytes < 100,
    "flip": lambda fault: isinstance(fault, Flip) and fault.offsets[0] >= 0,
    "lie": lambda fault: isinstance(fault, ShiftRange) and fault.by_bytes > 0,
}


@pytest.mark.parametrize("kind", KINDS)
@given(number=st.integers(0, 1 << 40), seed=st.integers(0, 1 << 40))
def test_each_kind_by_itself(kind, number, seed):
    script = seeded(Rates(seed=seed, **{kind: 1.0}))
    (fault,) = script(replace(RANGE, number=number))
    assert KINDS[kind](fault)
    assert script(replace(RANGE, number=number)) == [fault]
    assert script(replace(PUT, number=number)) == ()
    assert (len(script(replace(MANIFEST, number=number))) == 0) == (kind in ("flip", "lie"))


def test_rates_are_rates():
    script = seeded(Rates(seed=3, slow_down=0.1, stall=0.2, flip=0.3))
    counts = Counter(type(fault).__name__ for number in range(4000) for fault in script(replace(RANGE, number=number)))
    assert counts.keys() == {"Refuse", "Silence", "Flip"}
    assert 300 < counts["Refuse"] < 500
    assert 650 < counts["Silence"] < 950
    assert 1000 < counts["Flip"] < 1400


def test_latency_is_lognormal_with_a_slow_tail():
    script = seeded(Rates(seed=5, latency_s=0.03, sigma=0.5, slow=0.01, slow_factor=50))
    delays = sorted(script(replace(RANGE, number=number))[0].delay_s for number in range(4000))
    assert 0.028 < median(delays) < 0.032
    assert 0.042 < delays[3360] < 0.060  # one sigma: 0.03 · e^0.5 = 0.049
    assert 15 < sum(delay > 0.4 for delay in delays) < 70


@pytest.mark.parametrize("wrong", [{"flip": -0.1}, {"slow": 2}, {"reset": 0.6, "error": 0.6}, {"latency_s": -1}])
def test_impossible_rates(wrong):
    with pytest.raises(ValueError, match=r"negative|rates"):
        Rates(**wrong)
