"""The soak test's options; `make bench-smoke` runs it for a few seconds."""

from __future__ import annotations

import pytest

from benchmarks.soak import parse_options


@pytest.mark.parametrize("wrong", [["--minutes", "0"], ["--samples", "0"], ["--shortest", "9", "--longest", "1"]])
def test_impossible_options(wrong, capsys):
    with pytest.raises(SystemExit):
        parse_options(wrong)
    assert "--shortest is not longer" in capsys.readouterr().err
