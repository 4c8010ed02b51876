"""The soak test, for a few seconds."""

from __future__ import annotations

import json

import pytest

from benchmarks.soak import main, parse_options


@pytest.mark.long
@pytest.mark.s3
@pytest.mark.timeout(180)
def test_a_short_one(s3_server, toxiproxy_program, no_leaks, tmp_path):
    if s3_server.kind != "minio":
        pytest.skip("moto forgets its objects when it dies")
    file = tmp_path / "soak.json"
    arguments = ["--minutes", "0.1", "--samples", "300", "--shortest", "0.1", "--longest", "0.3", "--json", str(file)]
    assert main(arguments) == 0
    figures = json.loads(file.read_text())
    assert figures["epochs"] >= 1
    assert figures["samples"] == figures["epochs"] * 300
    assert figures["wrong_samples"] == 0
    assert sum(figures["spells"].values()) >= 3
    assert figures["max_fd"] >= figures["fd_before"]
    assert len(figures["ends"]["rss_mb"]) == figures["epochs"] + 2


@pytest.mark.parametrize("wrong", [["--minutes", "0"], ["--samples", "0"], ["--shortest", "9", "--longest", "1"]])
def test_impossible_options(wrong, capsys):
    with pytest.raises(SystemExit):
        parse_options(wrong)
    assert "--shortest is not longer" in capsys.readouterr().err
