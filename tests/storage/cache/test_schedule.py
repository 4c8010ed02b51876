from __future__ import annotations

import numpy as np
import pytest

from concurrent_loader.storage.cache.eviction import UseSchedule
from concurrent_loader.storage.errors import ConfigurationError


def schedule(names: list[str], rows: list[tuple[float, float, float, bool]]) -> UseSchedule:
    first, last, following, shared = (np.array(column) for column in zip(*rows, strict=True))
    return UseSchedule(names, first.astype(float), last.astype(float), following.astype(float), shared.astype(bool))


def test_the_next_use_is_in_this_epoch_until_its_last_one_is_over() -> None:
    uses = schedule(["a"], [(5, 9, 104, False)])
    assert uses.next_use("a", step=0) == 5
    assert uses.next_use("a", step=7) == 7
    assert uses.next_use("a", step=9) == 9
    assert uses.next_use("a", step=10) == 104
    assert uses.next_use("a", step=6, done_for_epoch=True) == 104
    assert uses.next_use("b", step=0) is None


def test_what_this_epoch_does_not_use_waits_for_the_next_or_for_ever() -> None:
    uses = schedule(["next", "never"], [(np.inf, -1, 120, False), (np.inf, -1, np.inf, False)])
    assert uses.next_use("next", step=0) == 120
    assert uses.next_use("never", step=0) == np.inf


def test_after_the_use_that_begins_now_comes_the_next_epochs_unless_others_need_it_too() -> None:
    uses = schedule(["mine", "ours"], [(5, 9, 104, False), (5, 9, 104, True)])
    assert uses.later_use("mine", step=6) == 104
    assert uses.later_use("ours", step=6) == 6
    assert uses.later_use("foreign", step=6) is None


def test_two_entries_may_be_one_file() -> None:
    uses = schedule(["a", "a"], [(5, 9, 104, False), (50, 60, 101, False)])
    assert uses.next_use("a", step=20) == 20
    assert uses.next_use("a", step=61) == 101
    assert uses.later_use("a", step=6) == 6


def test_lengths_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="one step per shard"):
        UseSchedule(["a"], np.zeros(2), np.zeros(1), np.zeros(1), np.zeros(1, dtype=bool))
