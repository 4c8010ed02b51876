"""The benchmark of decoding, with a few pictures."""

from __future__ import annotations

import json

from benchmarks.decode import QUICK, main, make_sets


def test_it_measures_every_recipe_on_every_set(tmp_path):
    file = tmp_path / "decode.json"
    assert main(["--quick", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    sets, recipes = ({row[name] for row in figures["rows"]} for name in ("set", "recipe"))
    assert sets == {"110kb", "35kb", "large"}
    assert {"PIL + v2", "torchvision.io + v2", "ours, library", "decode: torchcodec"} <= recipes
    assert len(figures["rows"]) == len(sets) * len(recipes)
    missing = {row["recipe"] for row in figures["rows"] if row["images_s_core"] is None}
    assert missing <= {"simplejpeg + cv2"}  # it needs what is no dependency of this project
    assert all(row["images_s_core"] > 0 for row in figures["rows"] if row["recipe"] not in missing)
    assert min(figures[f"ratio_{name}"] for name in sets) > 0
    assert 0 < figures["mean_error"] <= 2
    assert figures["two_thread_scaling"] > 0


def test_the_pictures_are_what_their_sets_say():
    sets = {photos.name: photos for photos in make_sets(QUICK)}
    assert 90_000 < sets["110kb"].mean_bytes < 130_000
    assert 30_000 < sets["35kb"].mean_bytes < 40_000
