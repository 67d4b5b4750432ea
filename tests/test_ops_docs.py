"""The pages for whoever runs it: commands run as written, tables are the code's, names and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.alarms import consumer_lag
from support.authority import Authority
from support.pages import check_page
from support.reference_pages import MADE, PAGES, made
from test_docs import PAGES as ALL_PAGES

from cordwood.telemetry import LOOKED_UP_OF_BUCKET

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("operations.md", 15),
        ("coming-from-kafka.md", 8),
        ("tenants.md", 8),
        ("audit.md", 12),
        ("security.md", 40),
    ],
)
def test_every_command_prints_what_the_page_says(page: str, least: int, tmp_path: Path) -> None:
    assert check_page(DOCS / page, tmp_path) >= least


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_what_is_declared(page: Path) -> None:
    """If this fails, run ``PYTHONPATH=tests .venv/bin/python -m support.reference_pages``."""
    text = page.read_text()
    assert text == made(text)


def test_every_table_that_can_be_made_is_on_a_page() -> None:
    found = [name for page in PAGES for name in re.findall(r"<!-- made: (.+?) -->", page.read_text())]
    assert sorted(found) == sorted(MADE)


#: Names of the same form that are fixtures of the pytest plugin.
FIXTURES = {
    "cordwood_spark",
    *(f"kafka_{each}" for each in ("broker", "broker_config", "topic", "producer", "consumer")),
}


#: A broker has them with a bucket only: tests/bucket/test_bucket_metrics.py.
OF_BUCKET = {metric.name for metric in LOOKED_UP_OF_BUCKET}


def test_every_metric_that_a_page_names_is_in_a_scrape(tmp_path: Path) -> None:
    own = Authority(tmp_path / "authority").issue("metrics")
    config = {
        "cordwood.metrics.partitions": "true",
        "cordwood.metrics.listen": "127.0.0.1:0,https://localhost:0",
        "listener.name.metrics.ssl.keystore.location": str(own.both),
    }
    _, exposed = consumer_lag(tmp_path / "data", config)
    families = exposed.names | exposed.kinds.keys()
    named = 0
    for page in ALL_PAGES:
        for name in re.findall(r"`((?:cordwood|kafka)_[a-z_]+)(?=[`{\[])", page.read_text()):
            if name in FIXTURES or name in OF_BUCKET:
                continue
            assert name in families or "(" in name, f"{page.name} names {name}"
            named += 1
    print(f"{named} names of metrics compared with a scrape")
    assert named >= 80


def slug(heading: str) -> str:
    """Return what a heading is linked by."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def test_every_link_to_a_section_finds_it() -> None:
    checked = 0
    for page in ALL_PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            linked = page.parent / target if target else page
            assert anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"
            checked += 1
    print(f"{checked} links to sections checked")
    assert checked >= 10


@pytest.mark.parametrize(
    "page",
    ["operations.md", "coming-from-kafka.md", "glossary.md", "configuration.md", "metrics.md", "security.md"],
)
def test_a_reader_finds_the_page_from_another_one(page: str) -> None:
    linking = [each for each in ALL_PAGES if each.name != page and f"{page}" in each.read_text()]
    assert linking, f"no page links to {page}"
