"""docs/protocol.md shows what is served and what it was tried with. Part of ``make test``."""

from __future__ import annotations

from interop import page
from interop.report import FAILED, PASSED, STEPS, load


def test_the_page_shows_what_is_served_and_what_passed() -> None:
    """If this fails, ``PYTHONPATH=tests .venv/bin/python -m interop.page`` writes the page anew."""
    text = page.PAGE.read_text()
    assert text == page.made(text, load())


def test_what_is_kept_of_the_last_run_is_complete() -> None:
    results = load()
    outcomes = [
        outcome for rows in results.values() for row in rows.values() for outcome in row["checks"].values()
    ]
    assert all(set(row["checks"]) == set(STEPS) for row in results["clients"].values())
    assert len(results["clients"]) >= 4
    assert outcomes.count(PASSED) >= 50
    assert FAILED not in outcomes
