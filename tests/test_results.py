"""docs/results.md has a row for each sweep, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import results
from results import BEGIN, END, PAGE, SWEEPS, Counted, Sweep, row_of, write

ROOT = PAGE.parents[1]


def rows() -> list[str]:
    """Return the rows between the marks of the page."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return [line for line in table.splitlines() if line.startswith("| ")][1:]


def test_every_sweep_has_its_row_with_cases_and_tests() -> None:
    written = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows()]
    assert [cells[0] for cells in written] == [sweep.claim for sweep in SWEEPS]
    for (_, cases, seeds, tests), sweep in zip(written, SWEEPS, strict=True):
        assert re.fullmatch(rf"[\d,]+ {re.escape(sweep.unit)}|1 {re.escape(sweep.unit[:-1])}", cases)
        assert re.fullmatch(r"\d+( to \d+)?|none needed", seeds)
        assert tests == "<br>".join(f"`{test}`" for test in sweep.tests)


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE.read_text()))
    missing = [
        (file, test)
        for file, test in named
        if not (ROOT / file).is_file() or (test and f"def {test}(" not in (ROOT / file).read_text())
    ]
    print(f"{len(named)} tests named")
    assert len(named) > 20
    assert missing == []


def test_every_variable_that_the_page_names_is_read_by_a_test() -> None:
    named = set(re.findall(r"CORDWOOD_[A-Z_]+", PAGE.read_text()))
    read = set()
    for file in (ROOT / "tests").rglob("*.py"):
        if file.name != "test_results.py":
            read |= set(re.findall(r"""["'](CORDWOOD_[A-Z_]+)["']""", file.read_text()))
    assert named <= read


def test_a_row_adds_up_what_its_tests_printed_and_names_their_seeds() -> None:
    sweep = Sweep("claim", ["tests/a.py::test_b"], r"([\d,]+) cases", "cases")
    printed = {
        "tests/a.py::test_b[1]": "seed 5: 1,200 cases",
        "tests/a.py::test_b[2]": "seeds 3 to 9: 30 cases",
        "tests/c.py::test_d": "7 cases",
    }
    assert row_of(sweep, printed) == "| claim | 1,230 cases | 3 to 9 | `tests/a.py::test_b` |"
    one = {"tests/a.py::test_b": "seed 5: 1 cases"}
    assert row_of(sweep, one) == "| claim | 1 case | 5 | `tests/a.py::test_b` |"
    with pytest.raises(SystemExit, match="no cases were counted: claim"):
        row_of(sweep, {})


@pytest.mark.parametrize(("status", "failed"), [(4, []), (0, ["tests/a.py::test_b"])])
def test_a_failed_run_leaves_the_page_as_it_is(
    status: int, failed: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "results.md"
    page.write_text(f"{BEGIN}\nbefore\n{END}")
    monkeypatch.setattr(results, "PAGE", page)
    counted = Counted()
    counted.failed.extend(failed)
    assert write(counted, status) == 1
    assert page.read_text() == f"{BEGIN}\nbefore\n{END}"
