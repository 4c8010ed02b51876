"""A project with modules of its own called ``storage`` trains in the process and with workers of every start method."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STORAGE = """
SECRET_OF_THE_PROJECT = 7

def add(sample):
    return {"label": sample["label"] + SECRET_OF_THE_PROJECT}

class Squares:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index ** 2 + SECRET_OF_THE_PROJECT
"""
TRAIN = """
import sys
from concurrent_loader import ConcurrentDataLoader, ShardDataset, ShardWriter
from storage import Squares, add

if __name__ == "__main__":
    loader, method = sys.argv[1:]
    if loader == "native":
        with ShardWriter("data", columns={"label": "int64"}) as writer:
            for label in range(4):
                writer.write({"label": label})
        dataset, options = ShardDataset("data"), {"transform": add}
    else:
        dataset, options = Squares(), {}
    if method != "threads":
        options |= {"num_workers": 1, "multiprocessing_context": method}
    for batch in ConcurrentDataLoader(dataset, batch_size=4, **options):
        print((batch["label"] if loader == "native" else batch).tolist())
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "loader", "method"),
    [
        ("module", "native", "threads"), ("package", "native", "spawn"), ("module", "native", "forkserver"),
        ("module", "drop-in", "spawn"), ("package", "drop-in", "forkserver"), ("module", "drop-in", "fork"),
    ],
)  # fmt: skip
def test_it_is_in_nobodys_way(tmp_path: Path, kind: str, loader: str, method: str) -> None:
    if kind == "package":
        (tmp_path / "storage").mkdir()
        (tmp_path / "storage/__init__.py").write_text(STORAGE)
    else:
        (tmp_path / "storage.py").write_text(STORAGE)
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "train.py", loader, method]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    expected = "[7, 8, 9, 10]" if loader == "native" else "[7, 8, 11, 16]"
    assert (done.stdout.strip(), done.returncode) == (expected, 0), done.stderr
