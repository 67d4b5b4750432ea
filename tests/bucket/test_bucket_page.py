"""docs/bucket.md: its commands print what they say over a server of S3, and its sums are right."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from support.bucket_servers import make_bucket, moto_server
from support.pages import check_page

PAGE = Path(__file__).parents[2] / "docs" / "bucket.md"


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    with moto_server() as url:
        make_bucket(url, "logs")
        assert check_page(PAGE, tmp_path, {"9000": str(urlsplit(url).port)}) >= 20


def test_the_costs_are_those_of_the_prices_on_the_page() -> None:
    page = PAGE.read_text()
    prices = re.search(r"([\d.]+) \$ for 1,000 PUTs.*?([\d.]+) \$ for 1,000 GETs", page, re.DOTALL)
    assert prices is not None
    put, get = (float(price) / 1000 for price in prices.groups())
    rows = re.findall(r"\| (\d+) (m?s) \| ([\d,]+) \| ([\d.]+) \$ \| ([\d.]+) \$ \| ([\d.]+) \$ \|", page)
    for length, unit, count, puts, gets, both in rows:
        number = 30 * 86_400 * 1000 // (int(length) * (1000 if unit == "s" else 1))
        assert int(count.replace(",", "")) == number
        assert (puts, gets) == (f"{number * put:.2f}", f"{number * get:.2f}")
        assert both == f"{number * (put + get):.2f}"
    assert [row[:2] for row in rows] == [("250", "ms"), ("1", "s"), ("5", "s")]
