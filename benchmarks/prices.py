"""What stores charge for being read: list prices as they stood on a day, to be checked before they are relied on.

Prices change, depend on the region, and leave free tiers and discounts aside. ``confirmed`` says of each where it was
found on the day of `PRICES_AS_OF`, and what could not be: S3's own page fills its tables by a script, so in copies of
it there are none. What is stored is not in the table: it costs the same however it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.access import Requests

PRICES_AS_OF = "2026-11-22"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one store, in US dollars."""

    store: str  # which, and where it is read from
    get_per_million: float  # GETs and HEADs
    list_per_million: float  # LISTs, of up to 1,000 keys each
    read_per_gib: float  # what bytes cost on the way out: retrieval and transfer
    source: str  # where the price stands; the page decides, not this table
    note: str  # for which region and class, and what is left out
    confirmed: str  # where the figures were found when they were last looked up, and which of them were not

    def dollars(self, requests: Requests) -> float:
        """What these requests cost."""
        return (
            (requests.gets + requests.heads) * self.get_per_million / 1e6
            + requests.lists * self.list_per_million / 1e6
            + requests.bytes / _GIB * self.read_per_gib
        )


_S3_STANDARD = (
    "second hand only: undated pages of others quote GET, PUT (LIST has the same line) and the first 10 TB over the "
    "internet like this; in a copy of the page itself of September 2026 the cells are empty; that transfer within the "
    "region is free stands in an older copy of the S3 FAQs"
)

PRICES = (
    Price(
        store="S3 Standard, same region",
        get_per_million=0.40,
        list_per_million=5.00,
        read_per_gib=0.0,
        source="https://aws.amazon.com/s3/pricing/",
        note="us-east-1; read through a gateway endpoint (a NAT gateway would charge for each GB)",
        confirmed=_S3_STANDARD,
    ),
    Price(
        store="S3 Standard, over the internet",
        get_per_million=0.40,
        list_per_million=5.00,
        read_per_gib=0.09,
        source="https://aws.amazon.com/s3/pricing/",
        note="us-east-1; the price of the first 10 TB a month, the 100 GB that are free left aside",
        confirmed=_S3_STANDARD,
    ),
    Price(
        store="S3 Express One Zone, same zone",
        get_per_million=0.03,
        list_per_million=1.13,
        read_per_gib=0.0006,
        source="https://aws.amazon.com/s3/faqs/ (worked example), https://aws.amazon.com/s3/pricing/",
        note="us-east-1; retrieval is charged for all bytes; LIST taken as PUT is",
        confirmed="GET, PUT and retrieval in an undated copy of the FAQs' worked examples, which count 1 GB as 2^30 "
        "bytes; LIST was not found; some pages of others still have the dearer GETs of before April 2025",
    ),
    Price(
        store="Google Cloud Storage, same region",
        get_per_million=0.40,
        list_per_million=5.00,
        read_per_gib=0.0,
        source="https://cloud.google.com/storage/pricing-examples, https://cloud.google.com/storage/pricing",
        note="Standard, one region, flat namespace; class B and class A operations",
        confirmed="operations in the worked example (us-east1), which says what is in which class; transfer within a "
        "region only on older copies of the price page",
    ),
    Price(
        store="Cloudflare R2",
        get_per_million=0.36,
        list_per_million=4.50,
        read_per_gib=0.0,
        source="https://developers.cloudflare.com/r2/pricing/",
        note="Standard; class B and class A operations, the free ones left aside; egress is free; what is begun of a "
        "million operations is charged whole, which is not in the figures",
        confirmed="all, in the source of that page in the repository cloudflare/cloudflare-docs",
    ),
)
