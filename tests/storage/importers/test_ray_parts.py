"""Imports on a Ray cluster. Ray starts a dozen processes, so these tests are long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from concurrent_loader.storage.errors import CorruptData
from concurrent_loader.storage.importers import ImageFolder
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.stores import open_store

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

SHARD = "4KiB"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for number in range(150):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        path = root / "ab"[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return root


@pytest.fixture
def cluster(one_ray_cluster: None) -> Iterator[Any]:
    """A cluster of three nodes on this machine."""
    cluster = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20},
    )
    try:
        cluster.nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_node_that_dies_in_the_middle(cluster: Any, images: Path, tmp_path: Path) -> None:
    one = ingest(ImageFolder(open_store(images)), tmp_path / "one", shard_size=SHARD).manifest
    killed = threading.Event()

    def kill(now: Any) -> None:
        if now.num_done and not killed.is_set():
            killed.set()
            cluster.remove_node(cluster.nodes[0], allow_graceful=False)

    report = ingest(ImageFolder(open_store(images)), tmp_path / "ray", shard_size=SHARD, engine="ray", on_progress=kill)
    assert killed.is_set()
    assert report.manifest.digest == one.digest


def test_the_error_of_a_part(cluster: Any, images: Path, tmp_path: Path) -> None:
    (tmp_path / "bad" / "a").mkdir(parents=True)
    for path in images.glob("*/*.jpg"):
        (tmp_path / "bad" / "a" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "bad" / "a" / "050.jpg").write_bytes(b"\xff\xd8\xff damaged")
    with pytest.raises(CorruptData) as caught:
        ingest(ImageFolder(open_store(tmp_path / "bad")), tmp_path / "out", shard_size=SHARD, engine="ray")
    assert caught.value.key == "a/050.jpg"
