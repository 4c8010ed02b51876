"""The Python of the pages is run, block after block, on a small data set on the local drive instead of a bucket."""

from __future__ import annotations

import io
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import concurrent_loader
from concurrent_loader import ShardDataset, storage
from concurrent_loader.storage import ShardWriter

ROOT = Path(__file__).parents[2]
NUM_PICTURES = 40

# What stands in a block that cannot be run here: it needs a cloud, a server, a GPU, another package, or is half of one.
ELSEWHERE = (
    "endpoint_url",
    "boto3",
    "obstore",
    "CommitConflict",
    'device="cuda"',
    "accelerator",
    "transformers",
    "http_faults",
    "files, ",
    "import ray",
    "integrations.dlio",
    # code of the other loaders
    "import webdataset",
    "wds.",
    "streaming",
    "StreamingDataset",
    "litdata",
    "from torchvision",
    "from torch.utils.data import DataLoader",
)

# Sizes and places for a small data set on the local drive, without worker processes.
SMALLER = {
    r"s3://[\w-]+/(photos|train)": r"{folder}/\g<1>",
    r"s3://[\w-]+/images/": r"{folder}/images",
    r"(?<=\")\./train": r"{folder}/images",
    r"/nvme/cache": r"{folder}/cache",
    r"storage_options={\"connect_s\": 3},": "",
    r"(batch_size=|dataset, |, )(256|64)(?=[,)])": r"\g<1>8",
    r"\b224\b": "32",
    r"\b90\)": "1)",
    r"\[17\]": "[7]",
    r"\[100:110\]": "[10:20]",
    r"num_workers=\d(, persistent_workers=True)?": "num_workers=0",
}


# Pages that write s3://…/photos themselves.
WRITING = {
    "docs/how-to/datasets.md",
    *(f"docs/coming-from/{name}.md" for name in ("litdata", "streaming", "webdataset")),
}


def blocks(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    ]


def picture(number: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images in folders, and the current folder is an empty one beside them."""
    for number in range(NUM_PICTURES):
        path = tmp_path / "images" / ("cat" if number % 2 else "dog") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    (tmp_path / "here" / "clips").mkdir(parents=True)
    np.save(tmp_path / "here" / "clips" / "0.npy", np.zeros(3, np.float32))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def surroundings(place: Path) -> dict[str, Any]:
    """What the pages take for granted: the packages' names, a data set, and things of the reader's own."""
    paths = sorted(place.glob("images/*/*.jpg"))
    names = {name: getattr(package, name) for package in (storage, concurrent_loader) for name in package.__all__}
    return {
        **names,
        "torch": torch,
        "my_samples": [(path, int(path.parent.name == "dog"), 0.5) for path in paths],
        "samples": [
            {"image": path.read_bytes(), "label": 1, "boxes": np.zeros((2, 4), np.float32), "caption": "a dog"}
            for path in paths
        ],
        "my_torch_dataset": torch.arange(100.0),
        "my_dataset": torch.arange(100.0),
        "crop": lambda sample: {**sample, "image": sample["image"][:, :16, :16]},
        "my_transform": lambda sample: sample,
        "model": torch.nn.Linear(1, 1),
        "time_to_save": True,
        "pixels": np.zeros((3, 20, 20), np.uint8),
        "top": 0, "left": 0, "height": 5, "width": 5,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "at_least"),
    [
        ("README.md", 2),
        ("docs/coming-from/litdata.md", 2),
        ("docs/coming-from/streaming.md", 2),
        ("docs/coming-from/torch.md", 2),
        ("docs/coming-from/webdataset.md", 2),
        ("docs/explanation/fetching.md", 1),
        ("docs/how-to/audio.md", 1),
        ("docs/how-to/augmentation.md", 1),
        ("docs/how-to/datasets.md", 7),
        ("docs/how-to/decoding.md", 2),
        ("docs/how-to/delete.md", 2),
        ("docs/how-to/drop_in.md", 1),
        ("docs/how-to/export.md", 1),
        ("docs/how-to/importers.md", 2),
        ("docs/how-to/ingest_at_scale.md", 2),
        ("docs/how-to/lifecycle.md", 4),
        ("docs/how-to/lossless.md", 1),
        pytest.param("docs/how-to/masks_and_boxes.md", 2, marks=pytest.mark.slow),
        ("docs/how-to/prove.md", 1),
        ("docs/how-to/traces.md", 1),
        ("docs/how-to/metrics.md", 1),
        pytest.param("docs/how-to/ragged.md", 2, marks=pytest.mark.slow),
        ("docs/how-to/sampling.md", 5),
        ("docs/how-to/text.md", 2),
        ("docs/how-to/training.md", 1),
        ("docs/how-to/video.md", 2),
        ("docs/how-to/workers.md", 1),
        ("docs/tutorials/first_run.md", 4),
        ("docs/tutorials/own_dataset.md", 2),
    ],
)
def test_a_page_runs(page: str, at_least: int, place: Path) -> None:
    given = surroundings(place)
    given["url"] = str(place / "another")
    ready = str(place / ("ready" if page in WRITING else "photos"))
    classes = {"classes": {"label": ["cat", "dog"]}}
    with ShardWriter(ready, columns={"image": "jpeg", "label": "int64"}, metadata=classes) as writer:
        for path, label, _ in given["my_samples"]:
            writer.write({"image": path.read_bytes(), "label": label})
    given["dataset"] = given["photos"] = given["drawings"] = ShardDataset(ready)
    num_run = 0
    for block in blocks(page):
        if any(sign in block for sign in ELSEWHERE) or re.search(r"\w…|…\w|…,|, …", block):
            continue
        for pattern, small in SMALLER.items():
            block = re.sub(pattern, small, block)
        exec(compile(block.replace("{folder}", str(place)).replace("…", "..."), f"{page}, block", "exec"), given)
        num_run += 1
    for value in given.values():
        if isinstance(value, ShardDataset):
            value.close()
    assert num_run >= at_least
