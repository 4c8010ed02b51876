"""Adopting headers only: positions without digests, and what then still notices a change."""

from __future__ import annotations

import asyncio
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset, convert
from concurrent_loader.storage import ShardWriter, delete, purge
from concurrent_loader.storage.adopt import adopt
from concurrent_loader.storage.adopt.formats.tar_headers import walk_members
from concurrent_loader.storage.adopt.protocol import BytesReader
from concurrent_loader.storage.errors import ConfigurationError, DatasetChanged, FormatError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.shards.manifest import manifest_body
from concurrent_loader.storage.shards.manifest.manifest_file import decode, encode
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.shards.verify import VerifyReport, verify_dataset
from concurrent_loader.storage.stores import MemoryStore, open_store

GOLDEN = Path(__file__).parent / "golden"
ROWS, VALUE_BYTES = 20, 150_000


def image(row: int) -> bytes:
    return b"\xff\xd8\xff" + random.Random(row).randbytes(VALUE_BYTES)


def tar(rows: range = range(ROWS), form: int = tarfile.PAX_FORMAT) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=form) as archive:
        for row in rows:
            for suffix, value in (("jpg", image(row)), ("cls", b"%d" % row)):
                member = tarfile.TarInfo(f"{'long-' * 30}{row:05d}.{suffix}" if row == 3 else f"{row:05d}.{suffix}")
                member.size = len(value)
                archive.addfile(member, io.BytesIO(value))
    return data.getvalue()


def dali_index(data: bytes) -> bytes:
    lines: dict[str, list[str]] = {}
    for each in walk_members(BytesReader(data)):
        key, _, extension = each.name.partition(".")
        size = each.data_end - each.data_start
        lines.setdefault(key, []).append(f"{extension} {each.data_start} {size} {each.name}")
    return "\n".join([f"v1.2 {len(lines)}", *(" ".join(line) for line in lines.values()), ""]).encode()


def energon_index(data: bytes) -> bytes:
    members = list(walk_members(BytesReader(data)))
    return np.array([*(each.start for each in members[::2]), members[-1].end], "<u8").tobytes()


class Counted(MemoryStore):
    """Counts the bytes that are read from it, and how many requests for them are under way at once."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.num_bytes = self.num_requests = self.in_flight = self.most = 0

    async def close(self) -> None:
        """Stays open for the next adoption."""

    async def get_range(self, key: str, start: int, end: int, **options: Any) -> Any:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0.005)  # longer than it takes to begin the next ones
        result = await super().get_range(key, start, end, **options)
        self.in_flight -= 1
        self.num_bytes += end - start
        self.num_requests += 1
        return result


@pytest.fixture
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counted:
    store = Counted(f"memory://headers-{request.node.name}")
    asyncio.run(store.put("0.tar", tar()))
    monkeypatch.setattr(
        "concurrent_loader.storage.adopt.stores.open_for",
        lambda url, *rest: store if str(url) == store.url else open_store(str(url)),
    )
    return store


def index_of(source: Counted) -> str:
    return f"{source.url}-index"


def verify(index: str) -> VerifyReport:
    async def run() -> VerifyReport:
        engine = FetchEngine(open_store(index))
        return await verify_dataset(
            engine, await load_manifest(engine), open_source=lambda url: FetchEngine(open_store(url))
        )

    return asyncio.run(run())


@pytest.mark.parametrize("beside", ["nothing", "0.idx", "0.tar.idx"])
def test_a_tar_file_is_adopted_by_its_headers(source: Counted, tmp_path: Path, beside: str) -> None:
    make = {"0.idx": dali_index, "0.tar.idx": energon_index}
    if beside in make:
        asyncio.run(source.put(beside, make[beside](tar())))
    report = adopt("webdataset", source.url, index_of(source), headers_only=True, num_threads=1)
    assert report.num_samples == ROWS
    assert source.num_bytes < 0.5 * len(tar())
    assert (source.most > 8) == (beside != "nothing")
    assert report.index_bytes / ROWS <= 40 + 1024  # the rest is the frame of this small shard
    for cache in ({}, {"cache_dir": tmp_path / "cache"}, {"cache_dir": tmp_path / "cache"}):
        with ShardDataset(index_of(source), **cache) as dataset:
            assert dataset[3]["__key__"].endswith("00003")
            assert [bytes(each["jpg"]) for each in dataset[:]] == [image(row) for row in range(ROWS)]
            seen = {}
            for batch in ConcurrentDataLoader(dataset, batch_size=5, shuffle=True):
                seen.update(zip(batch["cls"].tolist(), map(bytes, batch["jpg"]), strict=True))
            assert seen == {row: image(row) for row in range(ROWS)}


def test_what_is_verified_is_said(source: Counted) -> None:
    adopt("webdataset", source.url, index_of(source), headers_only=True)
    report = verify(index_of(source))
    assert (report.problems, report.num_undigested) == ((), 1)
    data = asyncio.run(source.get("0.tar")).data
    assert verify(index_of(source)).num_samples == ROWS
    asyncio.run(source.put("0.tar", bytes(data)))  # the same bytes, another ETag
    assert verify(index_of(source)).problems
    with ShardDataset(index_of(source)) as dataset:
        adopting = rf"adopt webdataset {source.url} {index_of(source)} --overwrite"
        with pytest.raises(DatasetChanged, match=adopting):
            dataset[0]
    adopt("webdataset", source.url, index_of(source), overwrite=True)
    assert verify(index_of(source)).num_undigested == 0


def test_converting_computes_digests_and_mixing_is_allowed(source: Counted, tmp_path: Path) -> None:
    adopt("webdataset", source.url, index_of(source), headers_only=True)
    asyncio.run(source.put("1.tar", tar(range(ROWS, ROWS + 2))))
    adopt("webdataset", source.url, index_of(source), append=True)
    assert verify(index_of(source)).num_undigested == 1
    convert(index_of(source), tmp_path / "native", source_options={})
    assert verify(str(tmp_path / "native")).num_undigested == 0
    with ShardDataset(index_of(source)) as before, ShardDataset(tmp_path / "native") as after:
        assert after[:] == before[:]
        assert after.manifest.statistics == before.manifest.statistics


def test_a_purge_does_not_claim_to_have_compared_values_without_digests(source: Counted) -> None:
    adopt("webdataset", source.url, index_of(source), headers_only=True)
    with ShardWriter(index_of(source), columns={"__key__": "str", "jpg": "jpeg", "cls": "int64"}, append=True) as more:
        for row in (100, 101):
            more.write({"__key__": str(row), "jpg": image(row), "cls": row})
    delete(index_of(source), where="cls == 100")
    report = purge(index_of(source))
    assert report.num_rows == 1
    assert [name.partition("[")[0] for name in report.unreadable] == ["0.tar"]


def test_an_interrupted_run_goes_on(source: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(source.put("1.tar", b"no tar file" * 100))
    with pytest.raises(FormatError):
        adopt("webdataset", source.url, index_of(source), headers_only=True, num_threads=1)
    asyncio.run(source.put("1.tar", tar(range(2))))
    report = adopt("webdataset", source.url, index_of(source), headers_only=True)
    assert (report.num_resumed, verify(index_of(source)).num_undigested) == (1, 2)


def test_an_older_reader_refuses_it_by_name(source: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = adopt("webdataset", source.url, index_of(source), headers_only=True).manifest
    assert manifest is not None
    data = encode(manifest)
    assert decode(data) == manifest
    monkeypatch.delitem(manifest_body.FEATURES, "no-payload-digests")
    with pytest.raises(FormatError, match="no-payload-digests"):
        decode(data)


def test_only_pinned_plain_ranges_may_lack_digests(source: Counted) -> None:
    manifest = adopt("webdataset", source.url, index_of(source), headers_only=True).manifest
    assert manifest is not None
    data = encode(manifest)
    for change in ({"etag": None}, {"transform": "zstd"}):
        body = json.loads(data[32:])
        body["sources"]["files"][0].update(change)
        text = json.dumps(body).encode()
        head = manifest_body._HEADER.pack(b"CLMANIF\n", 3, 0, len(text), manifest_body.xxhash.xxh3_64_intdigest(text))
        with pytest.raises(FormatError, match="each chunk needs one digest"):
            decode(head + text)


@pytest.mark.parametrize("name", ["0.idx", "0.tar.idx"])
def test_an_index_of_another_tar_file_is_named(source: Counted, name: str) -> None:
    data = dali_index(tar()).replace(b" 150003 ", b" 150002 ", 1) if name == "0.idx" else energon_index(tar())[8:]
    data = data if name == "0.idx" else (512).to_bytes(8, "little") + data
    asyncio.run(source.put(name, data))
    with pytest.raises(FormatError, match=name.replace(".", r"\.") + " .*create it again"):
        adopt("webdataset", source.url, index_of(source), headers_only=True)


def test_a_dry_run_compares_both_ways(source: Counted) -> None:
    plan = adopt("webdataset", source.url, index_of(source), dry_run=True).plan
    assert plan.num_requests == 1
    assert plan.headers_requests is not None
    assert plan.headers_bytes is not None
    assert ROWS // 2 <= plan.headers_requests <= 2 * ROWS
    assert plan.headers_bytes < plan.num_bytes / 2
    assert plan.headers_dollars == plan.headers_requests * 0.4e-6
    assert (source.num_requests, source.num_bytes) < (2 * ROWS, plan.num_bytes / 2)


@pytest.mark.parametrize("form", ["mds", "litdata"])
def test_other_formats_with_offsets(form: str, tmp_path: Path) -> None:
    assert adopt(form, GOLDEN / form / "all", tmp_path / "headers", headers_only=True).num_samples
    adopt(form, GOLDEN / form / "all", tmp_path / "digests")
    with ShardDataset(tmp_path / "headers") as one, ShardDataset(tmp_path / "digests") as other:
        assert repr(one[:]) == repr(other[:])


def test_what_cannot_be_read_by_headers(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="read as a whole"):
        adopt("parquet", tmp_path, tmp_path / "index", headers_only=True)
    with pytest.raises(ConfigurationError, match="compressed object"):
        adopt("mds", GOLDEN / "mds" / "zstd", tmp_path / "index", headers_only=True)
