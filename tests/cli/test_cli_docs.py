"""docs/cli.md: every command on the page is run, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import click
from support.pages import check_page

from cordwood.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_every_example_prints_what_the_page_says(tmp_path: Path) -> None:
    assert check_page(PAGE, tmp_path) >= 30


def test_every_command_is_on_the_page() -> None:
    page = PAGE.read_text()
    context = click.Context(main)
    for name in main.list_commands(context):
        assert f"cordwood {name} " in page or f"cordwood {name}\n" in page, name
        command = main.get_command(context, name)
        if isinstance(command, click.Group):
            for inner in command.list_commands(click.Context(command)):
                assert f"cordwood {name} {inner} " in page or f"cordwood {name} {inner}\n" in page, (
                    name,
                    inner,
                )
