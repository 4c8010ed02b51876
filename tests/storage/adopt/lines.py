"""A tiny foreign format for tests: lines of ``LABEL:TEXT``, one object per file ``*.lines`` or ``*.lines.gz``."""

from __future__ import annotations

import json

from concurrent_loader.storage.adopt.protocol import ForeignColumn, FoundSample, SourceObject
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.ranges import ByteRange


class Lines:
    name = "lines"

    def objects(self, entries, small):
        names = small.get("names.json", max_bytes=1 << 20)
        info = {} if names is None else {"names": json.loads(names)}
        return [
            SourceObject(entry=entry, info={**info, **({"compression": "gz"} if entry.key.endswith(".gz") else {})})
            for entry in entries
            if entry.key.endswith((".lines", ".lines.gz"))
        ]

    def columns(self, source, reader):
        return {
            "body": ForeignColumn(type="bytes"),
            "label": ForeignColumn(type="int64"),
            "name": ForeignColumn(type="str"),
        }

    def retype(self, source, column, type_):
        return ForeignColumn(type=type_)

    def walk(self, source, reader, columns):
        at = row = 0
        while at < reader.size:
            end, step = at, 4096
            while True:
                block = bytes(reader.read(end, min(end + step, reader.size)))
                if not block:
                    raise FormatError("a line without its end", start=at)
                cut = block.find(b"\n")
                if cut >= 0:
                    end += cut
                    break
                end += len(block)
            line = bytes(reader.read(at, min(end, at + 64)))
            colon = at + line.index(b":")
            values = {
                "body": ByteRange(colon + 1, end),
                "label": ByteRange(at, colon),
                "name": f"{source.entry.key}/{row}",
            }
            if line.startswith(b"!"):
                values = {**values, "more": 1, "label": 0}
            yield FoundSample(f"line {row}", at, end + 1, values)
            at, row = end + 1, row + 1

    def parse(self, column, type_, data):
        return int(bytes(data))
