"""`concurrent-loader ingest … --encode image=lossless`, and what `info` says of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from concurrent_loader.cli.app import app


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def pngs(tmp_path: Path) -> Path:
    y, x = np.mgrid[:60, :80]
    for number in range(4):
        path = tmp_path / "in" / f"{'ab'[number % 2]}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).normal(0, 3, (60, 80, 3))
        pixels = (100 + (x + y)[:, :, np.newaxis] + noise).clip(0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        path.write_bytes(file.getvalue())
    return tmp_path / "in"


@pytest.mark.parametrize("encoding", ["lossless", "lossless-pack"])
def test_pngs_become_lossless_pictures_and_info_shows_the_ratio(pngs, tmp_path, encoding):
    made = run("ingest", "image-folder", pngs, tmp_path / "out", "--encode", f"image={encoding}")
    assert made.exit_code == 0, made.stderr
    facts = json.loads(run("info", tmp_path / "out", "--json").stdout)
    assert facts["columns"]["image"] == "image/lossless"
    counts = facts["encoded"]["image"]
    assert counts["source_bytes"] == sum(path.stat().st_size for path in pngs.rglob("*.png"))
    assert counts["ratio"] == pytest.approx(counts["stored_bytes"] / counts["source_bytes"], abs=1e-3)
    shown = run("info", tmp_path / "out").stdout
    assert f"in the source, ratio {counts['ratio']:.3f}" in shown


def test_a_jpeg_is_no_source(pngs, tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    (pngs / "a" / "9.jpg").write_bytes(file.getvalue())
    made = run("ingest", "image-folder", pngs, tmp_path / "out", "--encode", "image=lossless")
    assert made.exit_code == 1
    assert "a/9.jpg" in made.stderr
    assert run("ingest", "image-folder", pngs, tmp_path / "out", "--encode", "image=png").exit_code == 2


def test_a_manifest_with_rubbish_about_it_is_shown_without(pngs, tmp_path):
    from concurrent_loader.cli.info import _encoded

    assert _encoded(None) == {}
    assert _encoded({"image": 3, "x": {"source_bytes": 0, "stored_bytes": 1}, "y": {"source_bytes": "9"}}) == {}
