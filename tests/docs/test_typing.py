"""The scripts of the README and of the pages, and how people call the loader, under mypy --strict and pyright.

pyright comes as basedpyright, which brings its own node and needs no network.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import concurrent_loader
from concurrent_loader import (
    Batch,
    ConcurrentDataLoader,
    DropInDataLoader,
    Mixture,
    NativeDataLoader,
    ShardDataset,
    storage,
)

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/tutorials/first_run.md",
    *(f"docs/how-to/{name}.md" for name in ("augmentation", "datasets", "decoding", "drop_in", "training", "workers")),
)
NOT_WHOLE = re.compile(r"\w…|…\w|…,|, …|boto3|obstore|accelerator|transformers|CommitConflict")

# What the pages take for granted.
GIVEN = """
from pathlib import Path
from typing import Any
import torch
from concurrent_loader import *
from concurrent_loader.storage import *

url: str
columns: dict[str, str]
dataset: ShardDataset | ObjectDataset
photos: ShardDataset
drawings: ObjectDataset
loader: ConcurrentDataLoader
model: Any
crop: Any
my_transform: Any
my_samples: list[tuple[Path, int, float]]
samples: list[dict[str, Any]]
my_torch_dataset: torch.utils.data.Dataset[Any]
my_dataset: torch.utils.data.Dataset[Any]
time_to_save: bool
"""

CALLS = """
from typing import Any, Iterator

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from concurrent_loader import (
    Augment, ConcurrentDataLoader, DropInDataLoader, Mixture, Normalize, ObjectDataset, RandomResizedCrop, ShardDataset
)


class Own(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Plain:
    def __getitem__(self, index: int) -> int:
        return index


class Asynchronous:
    async def getitem_async(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


class Mine(ConcurrentDataLoader):
    def __init__(self, dataset: ShardDataset, extra: int) -> None:
        super().__init__(dataset, 3, seed=extra)


def native(dataset: ShardDataset) -> None:
    how = Augment(RandomResizedCrop(224), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
    loader = ConcurrentDataLoader(dataset, batch_size=2, shuffle=True, seed=3, decode={"image": how}, device="cuda")
    length: int = len(loader)
    state: dict[str, Any] = loader.state_dict()
    loader.load_state_dict(state)
    loader.set_epoch(length)
    train, check = dataset.split([0.9, 0.1], seed=0)
    ConcurrentDataLoader(train.filter(lambda sample: True, columns=["label"]), 3, last_batch="pad")
    ConcurrentDataLoader(Mixture([train, check], weights=[1, 2]), batch_size=3)
    ConcurrentDataLoader(ObjectDataset("s3://bucket/images/"), batch_size=3, on_error="skip")
    ConcurrentDataLoader(dataset, sampler=[1, 2, 3])
    print(Mine(dataset, 3).stats.wait_s)


def drop_in() -> DataLoader[Any]:
    for dataset in (Own(), Plain(), Asynchronous(), TensorDataset(torch.zeros(3)), [1, 2, 3], Stream()):
        loader = ConcurrentDataLoader(dataset, batch_size=2, shuffle=True, num_workers=2, generator=torch.Generator())
        for batch in loader:
            print(batch, loader.state_dict())
    return DropInDataLoader(Own(), in_flight=3)


def either(loader: ConcurrentDataLoader | DropInDataLoader) -> None:
    print(loader.stats, loader.epoch, loader.state_dict(), len(loader))


either(ConcurrentDataLoader([1, 2]))
either(DropInDataLoader([1, 2]))
"""

WRONG = """
from concurrent_loader import ConcurrentDataLoader, DropInDataLoader, NativeDataLoader, ShardDataset

dataset = ShardDataset("s3://bucket/photos")
ConcurrentDataLoader(dataset, batchsize=2)
ConcurrentDataLoader(dataset, batch_size="2")
ConcurrentDataLoader(dataset, on_error="ignore")
ConcurrentDataLoader([1, 2], batchsize=2)
ConcurrentDataLoader([1, 2], seed=2)
ConcurrentDataLoader(3)
ConcurrentDataLoader(dataset).state()
ConcurrentDataLoader(dataset).stats.waits
NativeDataLoader([1, 2])
NativeDataLoader(dataset, sampler=[1])
DropInDataLoader([1, 2], seed=2)
DropInDataLoader([1, 2], in_flight="many")
"""
FIRST_WRONG = 5


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "given.pyi").write_text(GIVEN)
    (folder / "calls.py").write_text(CALLS)
    (folder / "wrong.py").write_text(WRONG)
    num_blocks = 0
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in re.findall(r"^ *```python\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
            if not NOT_WHOLE.search(block):
                script = "import torch\nfrom given import *\n" + textwrap.dedent(block).replace("…", "...")
                (folder / f"{Path(page).stem.lower()}_{num_blocks}.py").write_text(script)
                num_blocks += 1
    assert num_blocks > 15
    return folder


def check(complaints: set[tuple[str, int]], said: str) -> None:
    wrong = {line for file, line in complaints if file == "wrong.py"}
    assert {file for file, _ in complaints} == {"wrong.py"}, said
    assert wrong == set(range(FIRST_WRONG, len(WRONG.splitlines()) + 1)), said


def complaints_in(said: str, pattern: str) -> set[tuple[str, int]]:
    return {(Path(file).name, int(line)) for file, line in re.findall(pattern, said, re.MULTILINE)}


@pytest.mark.long
def test_mypy_takes_the_scripts_and_finds_the_mistakes(scripts: Path) -> None:
    options = [
        "--strict",
        "--config-file=",
        "--ignore-missing-imports",
        "--allow-untyped-defs",
        "--allow-untyped-calls",
        "--no-warn-unused-ignores",
    ]
    command = [sys.executable, "-m", "mypy", *options, "--cache-dir", str(scripts / "cache"), str(scripts)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    check(complaints_in(done.stdout, r"^([^\n:]+):(\d+): error"), done.stdout + done.stderr)


@pytest.mark.long
def test_pyright_takes_the_scripts_and_finds_the_mistakes(scripts: Path) -> None:
    pyright = pytest.importorskip("basedpyright", reason="needs basedpyright")
    config = f'{{"typeCheckingMode": "standard", "include": ["."], "extraPaths": ["{ROOT}"]}}'
    (scripts / "pyrightconfig.json").write_text(config)
    command = [sys.executable, "-m", pyright.__name__, "-p", str(scripts), "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=scripts, capture_output=True, text=True, timeout=280)
    check(complaints_in(done.stdout, r"^ *([^\n:]+):(\d+):\d+ - error"), done.stdout + done.stderr)


def test_signatures_are_real() -> None:
    class Mine(ConcurrentDataLoader):
        def __init__(self, dataset: Any, extra: int) -> None:
            super().__init__(dataset, extra)

    class Same(ConcurrentDataLoader):
        """Another name."""

    shown = inspect.signature(ConcurrentDataLoader).parameters
    assert {"batch_size", "decode", "sampler", "in_flight"} < set(shown)
    assert not any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in shown.values())
    assert list(inspect.signature(Mine).parameters) == ["dataset", "extra"]
    assert inspect.signature(Same).parameters == inspect.signature(NativeDataLoader).parameters
    assert "sampler" not in inspect.signature(NativeDataLoader).parameters
    assert list(inspect.signature(DropInDataLoader).parameters)[:4] == ["dataset", "batch_size", "shuffle", "sampler"]


@pytest.mark.parametrize("package", [concurrent_loader, storage])
def test_dir_of_a_package_is_what_it_offers(package: Any) -> None:
    assert dir(package) == sorted(package.__all__)


def test_dir_of_an_object_is_what_it_offers(tmp_path: Path) -> None:
    with concurrent_loader.storage.ShardWriter(str(tmp_path), columns={"label": "int64"}) as writer:
        writer.write({"label": 1})
    dataset = ShardDataset(str(tmp_path))
    things = (
        writer, dataset, dataset.subset([0]), Mixture([dataset, dataset], weights=[1, 1]),
        ConcurrentDataLoader(dataset), ConcurrentDataLoader([1, 2, 3]), Batch({"a": 1}),
    )  # fmt: skip
    for thing in things:
        assert [name for name in dir(thing) if re.match(r"_(?!_)", name)] == []
