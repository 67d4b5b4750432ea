"""What the documentation shows is what happens."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import fenced

import cordwood
from cordwood.formats import batch

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in fenced(page.read_text()) if found == language]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
def test_python_blocks_print_what_they_say(page: Path) -> None:
    """A comment line after a print is its output."""
    compared = 0
    for block in blocks(page, "python"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, page.name, "exec"), {})
        promised = [line[2:] for line in block.splitlines() if line.startswith("# ")]
        assert printed.getvalue().splitlines() == promised
        compared += len(promised)
    assert compared


def test_blocks_with_a_kafka_client_leave_no_word_of_it_on_standard_error() -> None:
    """A client that outlives its broker logs lines with FAIL, which a reader takes for a fault."""
    ran = 0
    for page in PAGES:
        for block in blocks(page, "python"):
            if "confluent_kafka" in block:
                done = subprocess.run(
                    [sys.executable, "-c", block], capture_output=True, text=True, check=True
                )
                assert done.stderr == "", page.name
                ran += 1
    print(f"{ran} blocks ran")
    assert ran >= 2


def test_what_the_first_page_promises_is_exported() -> None:
    """Each ``cordwood.name(`` of README.md and of the page of the library can be called as it is written."""
    promised = {
        name
        for page in (ROOT / "README.md", ROOT / "docs/library.md", ROOT / "docs/python.md")
        for name in re.findall(r"\bcordwood\.(\w+)(?:\.\w+)*\(", page.read_text())
    }
    assert {"open", "Broker", "spark", "replay"} <= promised
    assert sorted(promised - set(cordwood.__all__)) == []
    for name in cordwood.__all__:
        assert getattr(cordwood, name) is not None


def test_the_worked_example_of_a_batch_is_its_bytes() -> None:
    (example,) = (b for b in blocks(ROOT / "docs/formats/batch.md", "text") if "magic" in b)
    # The bytes come first on each line, then two spaces or more, then what they mean.
    written = "".join(re.split(r"  +", line)[0].replace(" ", "") for line in example.splitlines())
    assert bytes.fromhex(written) == bytes(batch.encode_records([(b"k", b"v")], now_ms=1_000))


def test_every_link_inside_the_repository_leads_somewhere() -> None:
    checked = 0
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
                checked += 1
    print(f"{checked} links checked")
    assert checked >= 5


def test_every_path_the_readme_names_exists() -> None:
    named = re.findall(
        r"`((?:tests|docs|src|benchmarks|examples)/[\w./]*)`", (ROOT / "README.md").read_text()
    )
    assert named
    for path in named:
        assert (ROOT / path).exists(), f"README names {path}"
