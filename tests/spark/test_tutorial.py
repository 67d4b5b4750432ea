"""docs/tutorial.md: everything on the page is run, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

from support.pages import check_page

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    assert check_page(PAGE, tmp_path) >= 12
