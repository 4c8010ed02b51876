"""The benchmark of the four pipelines, with a few images."""

from __future__ import annotations

import pytest

from benchmarks.pipelines import PIPELINES, changes


def test_changes_are_over_files_and_the_cpu():
    epoch_s = dict(zip(PIPELINES, (10.0, 9.0, 8.0, 5.0, 20.0, 15.0, 18.0, 12.0), strict=True))
    assert changes(epoch_s) == pytest.approx(
        {"reader_change_few": -0.2, "device_change_few": -0.5, "reader_change_many": -0.1, "device_change_many": -0.4}
    )
