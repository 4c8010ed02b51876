"""An adopted dataset is exported like any other."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from concurrent_loader import ShardDataset, adopt, export


def test_tar_files_are_adopted_exported_and_adopted_again(tmp_path: Any) -> None:
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "0.tar", "w") as tar:
        for number in range(20):
            for suffix, data in (("bin", bytes([number]) * 5000), ("cls", b"%d" % number)):
                member = tarfile.TarInfo(f"{number:03d}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    adopt("webdataset", tmp_path / "tars", tmp_path / "index")
    report = export(tmp_path / "index", tmp_path / "again", "webdataset", columns=["bin", "cls"])
    assert report.num_samples == 20
    adopt("webdataset", tmp_path / "again", tmp_path / "second")
    with ShardDataset(tmp_path / "index") as one, ShardDataset(tmp_path / "second") as other:
        assert [each["bin"] for each in one[:]] == [each["bin"] for each in other[:]]
        assert [each["cls"] for each in one[:]] == [each["cls"] for each in other[:]]
