"""``docs/security.md``: what it says is defended has tests that exist, and its settings are taken."""

from __future__ import annotations

import re

import pytest
from test_docs import ROOT, blocks
from test_documents import functions_of

from cordwood.config import load_broker_config

PAGE = ROOT / "docs/security.md"


def defended() -> list[str]:
    """Return the lines about what is defended, without headings."""
    section = PAGE.read_text().split("\n## What is defended\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line for line in lines[1:] if not line.startswith("| **")]


def test_each_line_about_what_is_defended_names_tests_that_exist() -> None:
    named = 0
    for line in defended():
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", line)
        assert tests, line
        assert line.count("`tests/") == len(tests), line
        for path, test in tests:
            assert test in functions_of(path), f"{path} has no {test}"
        named += len(tests)
    print(f"{named} tests named in {len(defended())} lines")
    assert named >= 70


@pytest.mark.parametrize("block", blocks(PAGE, "properties"), ids=lambda block: block.split("\n", 1)[0])
def test_settings_of_a_server_are_settings_and_have_an_effect(block: str) -> None:
    settings = dict(line.split("=", 1) for line in block.splitlines() if not line.startswith("#"))
    if "sasl.jaas.config" not in settings:
        _, warnings = load_broker_config(settings, environment={})
        assert warnings == []
