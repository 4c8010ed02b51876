from __future__ import annotations

import pytest

from benchmarks.access import CHUNK_SIZES, PRICES, Measured, Price, Requests, Workload, computed, scaled
from concurrent_loader.storage.testing.faults.http_proxy import Exchange
from concurrent_loader.storage.testing.faults.wire_faults import Request


def _exchange(method: str, query: str = "", num_bytes: int = 0) -> Exchange:
    return Exchange(Request(0, 0, method, "/bucket/key", query), (), 200, num_bytes)


def test_requests_are_told_apart_on_the_wire() -> None:
    exchanges = [
        _exchange("GET", num_bytes=10),
        _exchange("GET", "x-id=GetObject", num_bytes=5),
        _exchange("HEAD"),
        _exchange("GET", "list-type=2&prefix=manifests%2F", num_bytes=300),
    ]
    assert Requests.on_the_wire(exchanges) == Requests(gets=2, heads=1, lists=1, bytes=15)


def test_writing_is_not_counted_by_mistake() -> None:
    with pytest.raises(ValueError, match="PUT"):
        Requests.on_the_wire([_exchange("PUT")])


def test_requests_add_up_and_scale_to_whole_numbers() -> None:
    one = Requests(gets=3, heads=1, bytes=10)
    assert one + one == one.times(2) == Requests(gets=6, heads=2, bytes=20)
    assert one.times(0.5) == Requests(gets=2, heads=1, bytes=5)


def test_epochs_of_what_was_measured_scale_and_opening_does_not() -> None:
    epoch = Requests(gets=10, bytes=1_000)
    measured = Measured("shards", 100, Requests(gets=1, heads=1, lists=1, bytes=50), epoch, Requests())
    access = scaled(measured, Workload(1_000, 10, 3), per_object=False)
    assert access.kind == "measured"
    assert access.opening == Requests(gets=1, heads=1, lists=1, bytes=500)
    assert access.first_epoch == Requests(gets=100, bytes=10_000)
    assert access.run(3) == access.opening + access.first_epoch


def test_a_listing_of_objects_grows_by_pages() -> None:
    measured = Measured("objects", 100, Requests(lists=1), Requests(gets=100), Requests(gets=100))
    access = scaled(measured, Workload(2_500, 10, 4), per_object=True)
    assert access.opening == Requests(lists=3)
    assert access.run(4).gets == 10_000


def test_others_read_by_sample_or_by_file_and_some_keep_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHUNK_SIZES, "webdataset_bytes", 500_000_000)
    monkeypatch.setitem(CHUNK_SIZES, "mds_bytes", 50_000_000)
    monkeypatch.setitem(CHUNK_SIZES, "litdata_bytes", 10_000_000)
    workload = Workload(10_000, 100_000, 10)
    rows = {access.system: access for access in computed(workload)}
    assert {access.kind for access in rows.values()} == {"computed"}
    gets = {system: access.run(10).gets for system, access in rows.items()}
    assert gets == {
        "torch, objects": 100_000,
        "WebDataset": 20,
        "MosaicML Streaming": 21,
        "LitData": 101,
    }
    sizes = {system: access.run(10).bytes // workload.num_bytes for system, access in rows.items()}
    assert sizes == {"torch, objects": 10, "WebDataset": 10, "MosaicML Streaming": 1, "LitData": 1}


def test_dollars_are_requests_and_bytes_times_their_price() -> None:
    price = Price(
        store="", get_per_million=0.4, list_per_million=5, read_per_gib=0.09, source="", note="", confirmed=""
    )
    asked = Requests(gets=900_000, heads=100_000, lists=200_000, bytes=10 << 30)
    assert price.dollars(asked) == pytest.approx(0.4 + 1.0 + 0.9)


def test_every_price_names_its_source() -> None:
    assert len({price.store for price in PRICES}) == len(PRICES)
    assert all(price.source.startswith("https://") and price.note and price.confirmed for price in PRICES)
