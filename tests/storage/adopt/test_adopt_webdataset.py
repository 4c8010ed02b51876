"""Tar files that other programs wrote, from the file to the samples of a dataset."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader import ShardDataset
from concurrent_loader.storage.adopt import adopt
from concurrent_loader.storage.errors import FormatError

GOLDEN = Path(__file__).parent / "golden"
EXPECTED: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "webdataset.json").read_text())
COMPLETE = [name for name in EXPECTED if name.startswith(("gnu-tar", "tarwriter"))]

pytestmark = pytest.mark.usefixtures("no_leaks")


def copy(name: str, folder: Path) -> str:
    (folder / "tars").mkdir(exist_ok=True)
    shutil.copy(GOLDEN / name, folder / "tars")
    return str(folder / "tars")


@pytest.mark.parametrize("name", COMPLETE)
def test_samples_are_those_of_webdataset(name: str, tmp_path: Path) -> None:
    index = str(tmp_path / "index")
    assert adopt("webdataset", copy(name, tmp_path), index).num_samples == len(EXPECTED[name])
    with ShardDataset(index) as dataset:
        for at, expected in enumerate(EXPECTED[name]):
            sample = dict(dataset[at])
            assert sample.pop("__key__") == expected["key"]
            assert sample.keys() == expected["fields"].keys()
            for field, value in sample.items():
                if field in expected["decoded"]:
                    found = [str(value.dtype), value.tolist()] if isinstance(value, np.ndarray) else value
                    assert found == expected["decoded"][field]
                else:
                    data = value.encode() if isinstance(value, str) else bytes(value)
                    assert data.hex() == expected["fields"][field]


def test_samples_with_different_fields_need_a_choice(tmp_path: Path) -> None:
    source = copy("pax.tar", tmp_path)
    with pytest.raises(FormatError, match=r"sample '__info__': the sample lacks the field .*--only") as caught:
        adopt("webdataset", source, tmp_path / "index")
    assert caught.value.key == "pax.tar"
    adopt("webdataset", source, tmp_path / "index", only=["__key__"])
    with ShardDataset(str(tmp_path / "index")) as dataset:
        assert [dataset[at]["__key__"] for at in range(len(dataset))] == [each["key"] for each in EXPECTED["pax.tar"]]
