"""What stores charge for being read: list prices as they stood on a day, to be checked before they are relied on.

Prices change, depend on the region, and leave free tiers and discounts aside. Those of R2, Google and S3 Express stand
in copies of the pages named; S3's own page fills its tables by a script, so those of S3 Standard are as widely quoted.
What is stored is not in the table: it costs the same however it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.bucket_requests import Requests

__all__ = ["PRICES", "PRICES_AS_OF", "Price"]

PRICES_AS_OF = "2026-11-21"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one store, in US dollars.

    Attributes:
        store: Which, and where it is read from.
        get_per_million: GETs and HEADs.
        list_per_million: LISTs, of up to 1,000 keys each.
        read_per_gib: What bytes cost on the way out: retrieval and transfer.
        source: Where the price stands; the page decides, not this table.
        note: How sure this is, and what is left out.
    """

    store: str
    get_per_million: float
    list_per_million: float
    read_per_gib: float
    source: str
    note: str

    def dollars(self, requests: Requests) -> float:
        """What these requests cost."""
        return (
            (requests.gets + requests.heads) * self.get_per_million / 1e6
            + requests.lists * self.list_per_million / 1e6
            + requests.bytes / _GIB * self.read_per_gib
        )


PRICES = (
    Price(
        store="S3 Standard, same region",
        get_per_million=0.40,
        list_per_million=5.00,
        read_per_gib=0.0,
        source="https://aws.amazon.com/s3/pricing/",
        note="us-east-1; read through a gateway endpoint (a NAT gateway would charge for each GB)",
    ),
    Price(
        store="S3 Standard, over the internet",
        get_per_million=0.40,
        list_per_million=5.00,
        read_per_gib=0.09,
        source="https://aws.amazon.com/s3/pricing/",
        note="us-east-1; the price of the first 10 TB a month, the 100 GB that are free left aside",
    ),
    Price(
        store="S3 Express One Zone, same zone",
        get_per_million=0.03,
        list_per_million=1.13,
        read_per_gib=0.0006,
        source="https://aws.amazon.com/s3/faqs/ (worked example), https://aws.amazon.com/s3/pricing/",
        note="us-east-1; retrieval is charged for all bytes since April 2025; LIST taken as PUT is",
    ),
    Price(
        store="Google Cloud Storage, same region",
        get_per_million=0.40,
        list_per_million=5.00,
        read_per_gib=0.0,
        source="https://cloud.google.com/storage/pricing",
        note="Standard, one region, flat namespace; class B and class A operations",
    ),
    Price(
        store="Cloudflare R2",
        get_per_million=0.36,
        list_per_million=4.50,
        read_per_gib=0.0,
        source="https://developers.cloudflare.com/r2/pricing/",
        note="Standard; class B and class A operations, the free ones left aside; egress is free",
    ),
)
