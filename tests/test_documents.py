"""``docs/documents.md``: every row names a place in the tree and tests that are there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECTIONS = (
    "RustLog storage layer",
    "Rafka SingleWal",
    "Kimberlite append-only log",
    "laminarmq segmented log",
    "Storage format of a broker",
)
DIFFERENCES = "Deliberate differences"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


class Row(NamedTuple):
    section: str
    what: str
    where: str
    tests: str


def rows() -> list[Row]:
    """Return the rows of all tables on the page, without their heads."""
    found, section = [], ""
    for line in (ROOT / "docs/documents.md").read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| What the document describes |"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            assert len(cells) == 3, line
            found.append(Row(section, *cells))
    return found


@functools.cache
def functions_of(path: str) -> frozenset[str]:
    """Return the names of all functions of a test file, or none where there is no such file."""
    if not (ROOT / path).is_file():
        return frozenset()
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_capability_of_the_documents_has_a_place_and_tests_that_exist() -> None:
    counts, tests = dict.fromkeys((*SECTIONS, DIFFERENCES), 0), set()
    wrong: list[str] = []
    for row in rows():
        counts[row.section] += 1
        where = re.findall(r"`([^`]+)`", row.where)
        if row.section != DIFFERENCES and not (where and all((ROOT / path).exists() for path in where)):
            wrong.append(f"{row.what}: nothing is at {row.where}")
        named = _TEST.findall(row.tests)
        if not named or len(named) != row.tests.count("::"):
            wrong.append(f"{row.what}: {row.tests!r} does not name tests")
        wrong += [f"{row.what}: no {path}::{name}" for path, name in named if name not in functions_of(path)]
        tests.update(named)
    print(f"{counts}, {sum(counts.values())} rows in all, shown by {len(tests)} tests")
    assert not wrong, "\n".join(wrong)
    assert all(counts.values())
    assert sum(counts[section] for section in SECTIONS) >= 150


def test_no_capability_is_listed_twice() -> None:
    listed = [(row.section, row.what) for row in rows()]
    assert len(set(listed)) == len(listed)
